"""Write a package: only what changed, each file atomically, the manifest last."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen import __version__
from codegen.errors import BadSpecName, OutputRefused
from codegen.plan import Plan
from codegen.render import render_package, target_folder
from dsl import ModelSpec

MANIFEST = "manifest.json"
SPEC = "spec.json"
FORMAT = 1
SPEC_NAME = re.compile(r"[\w.+@=-]{1,200}")


@dataclass(frozen=True)
class Written:
    """What `write_package` did."""

    files: int
    changed: int
    removed: int


def write_package(plans: list[Plan], directory: Path, spec: ModelSpec, spec_path: str) -> Written:
    """Render `plans` (one per target) into `directory`. Identical input gives identical bytes, wherever the spec lies.

    Raises OutputRefused, or BadSpecName.
    """
    command = f"python -m codegen build {_spec_name(spec_path)}"
    files = render_package(plans, command) | {SPEC: _spec_json(spec)}
    previous = _previous(directory)
    changed = sum(_write_if_changed(directory / path, text) for path, text in files.items())
    stale = sorted(set(previous) - set(files))
    for path in stale:
        _remove(directory, path)
    _write_if_changed(directory / MANIFEST, _manifest(plans, files))
    return Written(len(files), changed, len(stale))


def _spec_name(spec_path: str) -> str:
    """File name of the spec, as the generated files quote it."""
    name = Path(spec_path).name
    if not SPEC_NAME.fullmatch(name):
        raise BadSpecName(name=name)
    return name


def _spec_json(spec: ModelSpec) -> str:
    """The spec as JSON (infinity as `Infinity`), so that `verify` can run the reference beside the package."""
    return json.dumps(spec.model_dump(mode="python"), indent=1, sort_keys=True) + "\n"


def _manifest(plans: list[Plan], files: dict[str, str]) -> str:
    content: dict[str, Any] = {
        "format": FORMAT,
        "generator": __version__,
        "name": plans[0].name,
        "spec_sha256": plans[0].spec_sha256,
        "targets": {
            plan.target: {
                "folder": target_folder(plan.target),
                "plan_sha256": plan.sha256,
                "numerics_sha256": plan.numerics_sha256,
            }
            for plan in plans
        },
        "files": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(files.items())},
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _previous(directory: Path) -> list[str]:
    """Files of the package that is there, by its own manifest. Refuses a folder that holds something else."""
    manifest = directory / MANIFEST
    if manifest.is_file():
        try:
            files = json.loads(manifest.read_text())["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise OutputRefused(
                path=directory, detail=f"its {MANIFEST} is damaged ({error}); remove the folder"
            ) from error
        return [path for path in files if _inside(path)]
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise OutputRefused(path=directory, detail=f"it exists, is not empty and has no {MANIFEST}")
    return []


def _remove(directory: Path, path: str) -> None:
    """Remove a file of ours and the folders that it leaves empty."""
    (directory / path).unlink(missing_ok=True)
    for parent in (directory / path).parents:
        if parent == directory or not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()


def _inside(path: str) -> bool:
    """Whether a manifest entry is a relative path without parent steps."""
    parts = Path(path)
    return not parts.is_absolute() and ".." not in parts.parts


def _write_if_changed(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)
    return True
