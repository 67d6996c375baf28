"""The manifest of a package: files with their hashes, where each target lies. Read strictly: packages are untrusted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.errors import PackageDamaged, PackageNotFound, PackageTooNew

MANIFEST = "manifest.json"
FORMAT = 1
FOLDER = re.compile(r"[a-z][a-z0-9_]*")
NEEDED = ("plan.json", "step.py", "__init__.py")


@dataclass(frozen=True)
class TargetEntry:
    """One target of a package. folder: its subpackage; numerics_sha256: of what decides bits, without weights."""

    folder: str
    numerics_sha256: str


@dataclass(frozen=True)
class Manifest:
    """A manifest as read. files: sha256 by path relative to the package; digest: of the manifest itself."""

    name: str
    targets: Mapping[str, TargetEntry]
    files: Mapping[str, str]
    digest: str


def read_manifest(path: Path) -> Manifest:
    """The manifest of the package at `path`. Raises PackageNotFound, PackageDamaged or PackageTooNew."""
    file = path / MANIFEST
    try:
        if not file.is_file():
            raise PackageNotFound(path=path, manifest=MANIFEST)
        text = file.read_bytes()
        return _parsed(json.loads(text), path, hashlib.sha256(text).hexdigest())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackageDamaged(path=file, detail=f"not a manifest ({error!r})") from error


def _parsed(data: Any, path: Path, digest: str) -> Manifest:
    found = data["format"]
    if type(found) is not int:
        raise TypeError("format is no number")
    if found > FORMAT:
        raise PackageTooNew(path=path, found=found, known=FORMAT)
    files = {_relative(name): _text(sha256) for name, sha256 in data["files"].items()}
    targets = {_text(name): _target(entry, files) for name, entry in data["targets"].items()}
    return Manifest(_text(data["name"]), targets, files, digest)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _relative(name: Any) -> str:
    parts = PurePosixPath(_text(name)).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ValueError(f"{name!r} is no path inside the package")
    return str(name)


def _target(entry: Any, files: Mapping[str, str]) -> TargetEntry:
    folder = _text(entry["folder"])
    if not FOLDER.fullmatch(folder):
        raise ValueError(f"folder {folder!r}")
    for name in NEEDED:
        if f"{folder}/{name}" not in files:
            raise ValueError(f"{folder}/{name} is not listed")
    return TargetEntry(folder, _text(entry["numerics_sha256"]))


def verify_files(path: Path, files: Mapping[str, str]) -> None:
    """Every listed file is there with its hash. Raises PackageDamaged with the first that is not."""
    for name, digest in files.items():
        try:
            found = hashlib.sha256((path / name).read_bytes()).hexdigest()
        except FileNotFoundError:
            raise PackageDamaged(path=path, detail=f"{name} is missing") from None
        except OSError as error:
            raise PackageDamaged(path=path, detail=f"{name} cannot be read ({error.strerror})") from error
        if found != digest:
            raise PackageDamaged(path=path, detail=f"{name} differs from its hash in {MANIFEST}")
