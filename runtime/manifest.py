"""The manifest of a package: files with their hashes, where each target lies. Read strictly: packages are untrusted."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.checked import mapping, text
from runtime.checked import name as checked_name
from runtime.errors import PackageDamaged, PackageNotFound, PackageTooNew
from runtime.files import read_regular, sha256_of, unique_keys

MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES = 16 << 20
FILE_BYTES = 64 << 20
FOLDER = re.compile(r"[a-z][a-z0-9_]*")
TARGET = re.compile(r"[a-z]{1,16}(:[0-9]{1,4})?", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
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
        content = read_regular(file, MANIFEST_BYTES)
        data = json.loads(content, object_pairs_hook=unique_keys)
        return _parsed(mapping(data), path, hashlib.sha256(content).hexdigest())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise PackageNotFound(path=path, manifest=MANIFEST) from None
        raise PackageDamaged(path=file, detail=f"it cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageDamaged(path=file, detail=f"not a manifest ({error!r})") from error


def _parsed(data: Any, path: Path, digest: str) -> Manifest:
    found = data["format"]
    if type(found) is not int:
        raise TypeError("format is no number")
    if found > FORMAT:
        raise PackageTooNew(path=path, found=found, known=FORMAT)
    files = {_relative(name): _like(SHA256, sha256) for name, sha256 in mapping(data["files"]).items()}
    targets = {_like(TARGET, name): _target(entry, files) for name, entry in mapping(data["targets"]).items()}
    return Manifest(checked_name(data["name"]), targets, files, digest)


def _like(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(text(value)):
        raise ValueError(f"{value[:60]!r} is not like {pattern.pattern}")
    return str(value)


def _relative(name: str) -> str:
    parts = PurePosixPath(text(name)).parts
    if not parts or name.startswith("/") or ".." in parts or not name.isprintable():
        raise ValueError(f"{name[:60]!r} is no path inside the package")
    return name


def _target(entry: Any, files: Mapping[str, str]) -> TargetEntry:
    entry = mapping(entry)
    folder = _like(FOLDER, entry["folder"])
    for name in NEEDED:
        if f"{folder}/{name}" not in files:
            raise ValueError(f"{folder}/{name} is not listed")
    return TargetEntry(folder, text(entry["numerics_sha256"]))


def verify_files(path: Path, files: Mapping[str, str]) -> None:
    """Every listed file is there with its hash. Raises PackageDamaged with the first that is not."""
    for name, digest in files.items():
        try:
            found = sha256_of(path / name, FILE_BYTES)
        except FileNotFoundError:
            raise PackageDamaged(path=path, detail=f"{name} is missing") from None
        except OSError as error:
            raise PackageDamaged(path=path, detail=f"{name} cannot be read ({error.strerror})") from error
        if found != digest:
            raise PackageDamaged(path=path, detail=f"{name} differs from its hash in {MANIFEST}")
