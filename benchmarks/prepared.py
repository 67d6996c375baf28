"""Packages that benchmarks run: built when they are needed, which takes half a second if nothing changed.

They are untuned, whatever autotune has found on this machine, and in a folder of their own: figures compare with those
of other runs, and nobody's package is replaced.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class NotPrepared(Exception):
    """A package or its weights could not be made. The message is that of the command."""


def package(spec: Path) -> Path:
    """Folder of the built package of a spec: build/benchmarks/<name of the spec's file>. Raises NotPrepared."""
    folder = ROOT / "build" / "benchmarks" / spec.stem.replace("-", "_")
    run("codegen", "build", str(spec), "-o", str(folder), "--untuned")
    return folder


def random_weights(folder: Path) -> Path:
    """File of seeded random weights beside a package, made if there is none. Raises NotPrepared."""
    file = folder.with_suffix(".safetensors")
    if not file.exists():
        run("runtime", "random-weights", str(folder), "-o", str(file))
    return file


def run(module: str, *arguments: str) -> None:
    """`python -m module arguments`, quietly. Raises NotPrepared."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPrepared(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
