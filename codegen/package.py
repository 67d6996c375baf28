"""Write a package: only what changed, each file atomically, the manifest last."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen import __version__
from codegen.errors import BadSpecName, OutputNotWritten, OutputRefused
from codegen.plan import Plan
from codegen.render import render_package, target_folder
from codegen.whole_file import replace_whole, sweep_partials
from dsl import ModelSpec
from dsl.files import read_regular

MANIFEST = "manifest.json"
SPEC = "spec.json"
MANIFEST_BYTES, SPEC_BYTES = 16 << 20, 16 << 20
FORMAT = 1
MARK = ".stepforge-building"
SPEC_NAME = re.compile(r"[\w.+@=-]{1,200}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Written:
    """What `write_package` did."""

    files: int
    changed: int
    removed: int


def write_package(plans: list[Plan], directory: Path, spec: ModelSpec, spec_path: str) -> Written:
    """Render `plans` (one per target) into `directory`. Identical input gives identical bytes, wherever the spec lies.

    An interrupted build leaves a mark, and the next one goes on. Raises OutputRefused, OutputNotWritten
    or BadSpecName.
    """
    command = f"python -m codegen build {_spec_name(spec_path)}"
    files = render_package(plans, command) | {SPEC: _spec_json(spec)}
    if not _nameable(directory):
        raise OutputRefused(path=directory, detail="no folder can have this name")
    try:
        return _write(plans, directory, files)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else directory
        raise OutputNotWritten(path=where, detail=error.strerror or str(error)) from error


def _write(plans: list[Plan], directory: Path, files: dict[str, str]) -> Written:
    previous = _previous(directory)
    _check_links(directory, [*files, MANIFEST, MARK])
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / MARK).is_file():
        _sweep(directory)
    (directory / MARK).touch()
    changed = sum(_write_if_changed(directory / path, text) for path, text in files.items())
    removed = sum(_remove(directory, path, previous[path]) for path in sorted(set(previous) - set(files)))
    _write_if_changed(directory / MANIFEST, _manifest(plans, files))
    (directory / MARK).unlink()
    return Written(len(files), changed, removed)


def _nameable(path: Path | str) -> bool:
    """Whether a file or folder can have this name at all."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _spec_name(spec_path: str) -> str:
    """File name of the spec, as the generated files quote it."""
    name = Path(spec_path).name
    if not SPEC_NAME.fullmatch(name):
        raise BadSpecName(name=name)
    return name


def _spec_json(spec: ModelSpec) -> str:
    """The spec as JSON (infinity as `Infinity`), so that `verify` can run the reference beside the package."""
    return json.dumps(spec.model_dump(mode="python"), indent=1, sort_keys=True) + "\n"


def spec_of(directory: Path) -> ModelSpec:
    """The spec that `write_package` left in a package. Raises ValueError, in words, if there is none."""
    try:
        data = json.loads(read_regular(directory / SPEC, SPEC_BYTES))
        return ModelSpec.model_validate(data, strict=False)
    except (OSError, ValueError, RecursionError) as error:
        what = f"{directory / SPEC} is not the spec of a package ({type(error).__name__}); build it again"
        raise ValueError(what) from error


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


def _previous(directory: Path) -> dict[str, str]:
    """Files of the package that is there and their hashes, by its own manifest. Refuses a folder of something else."""
    manifest = directory / MANIFEST
    if os.path.lexists(manifest):
        return _recorded(directory, manifest)
    if (directory / MARK).is_file():
        return {}
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise OutputRefused(path=directory, detail=f"it exists, is not empty and has no {MANIFEST}")
    return {}


def _recorded(directory: Path, manifest: Path) -> dict[str, str]:
    try:
        content = json.loads(read_regular(manifest, MANIFEST_BYTES))
        ours = content["format"] == FORMAT and isinstance(content["generator"], str)
        files = {path: sha256 for path, sha256 in content["files"].items() if ours and SHA256.fullmatch(sha256)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = f"its {MANIFEST} is damaged or not of a package ({error!r}); remove the folder or choose another"
        raise OutputRefused(path=directory, detail=detail) from error
    if not ours or len(files) != len(content["files"]):
        raise OutputRefused(path=directory, detail=f"its {MANIFEST} is not that of a package; choose another folder")
    return files


def _check_links(directory: Path, paths: Iterable[str]) -> None:
    """Nothing is written through a symbolic link. Raises OutputRefused."""
    for path in paths:
        for place in (directory / path, *(directory / path).parents):
            if place == directory:
                break
            if place.is_symlink():
                raise OutputRefused(path=place, detail="it is a symbolic link; remove it")


def _remove(directory: Path, path: str, sha256: str) -> bool:
    """Remove a file of ours, if it is still as we wrote it, and the folders that it leaves empty."""
    file = directory / path
    if (
        not _inside(directory, path)
        or not os.path.isfile(file)
        or hashlib.sha256(file.read_bytes()).hexdigest() != sha256
    ):
        return False
    file.unlink()
    for parent in file.parents:
        if parent == directory or any(parent.iterdir()):
            break
        parent.rmdir()
    return True


def _inside(directory: Path, path: str) -> bool:
    """Whether a manifest entry names a file below the folder that no link leads to."""
    parts = Path(path)
    if not _nameable(path) or parts.is_absolute() or ".." in parts.parts:
        return False
    try:
        return (directory / path).resolve() == directory.resolve() / path
    except (OSError, RuntimeError):  # a loop of links
        return False


def _sweep(directory: Path) -> None:
    """Remove what a build that was killed left half written, in the folders of the package, none behind a link."""
    for folder, _, _ in os.walk(directory):
        sweep_partials(Path(folder))


def _write_if_changed(path: Path, text: str) -> bool:
    content = text.encode()
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, content)
    return True
