"""Code in a process of its own: for affinities that must not leak, and for memory whose reading would end the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def alone(code: str, timeout: float = 60) -> str:
    """Output of Python code that runs in a new process, with this file's folder to import from."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[3])])
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    return done.stdout.strip()
