"""Hashes of large files that were read before, by what the file system says of the files.

A file whose device, inode, size, and times of last change of contents and of status are those of a file that was hashed
is that file, unchanged: no program sets the time of the last status change. A file younger than its clock is fine when
it is hashed is not remembered, for it might be written to once more within the same tick.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from runtime.files import unique_keys
from runtime.trusted_files import opened_trusted, replacing, sole_writer

NAME = "known-digests.json"
FORMAT = 1
MOST = 16  # entries, the latest
MOST_BYTES = 1 << 20
SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system, FAT's


def kept_folders(beside: Path) -> list[Path]:
    """Where processes keep what the next one need not compute again: beside a package, else in the user's cache."""
    return [beside, user_cache_path("stepforge", appauthor=False)]


def identity(kind: str, found: Iterable[tuple[str, os.stat_result]]) -> str | None:
    """What files are, by name; None if one was changed too recently to be told from a later change."""
    latest = time.time_ns() - SETTLED_NS
    described = []
    for name, stat in found:
        if max(stat.st_mtime_ns, stat.st_ctime_ns) > latest:
            return None
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        described.append((name, stat.st_dev, stat.st_ino, stat.st_size, *times))
    return hashlib.sha256(json.dumps([kind, described]).encode()).hexdigest()


class KnownDigests:
    """A small file of digests by identity, in the first of some folders that has it or can have it."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def get(self, identity: str | None) -> str | None:
        """The digest of what has this identity, if it was remembered."""
        if identity is None:
            return None
        return next((known[identity] for known in map(_read, self._folders) if identity in known), None)

    def put(self, identity: str | None, digest: str) -> None:
        """Remember a digest, if the identity is one and a folder can be written to; else nothing happens."""
        for folder in self._folders if identity is not None else ():
            try:
                with sole_writer(folder):
                    _write(folder, {**_read(folder), str(identity): digest})
                return
            except BlockingIOError:
                return
            except OSError:
                continue  # it is no folder that can be written to


def _write(folder: Path, known: dict[str, str]) -> None:
    with replacing(folder / NAME) as file, open(file, "w", closefd=False) as stream:
        json.dump({"format": FORMAT, "digests": dict(list(known.items())[-MOST:])}, stream, indent=1)


def _read(folder: Path) -> dict[str, str]:
    """Digests by identity; none if the file is absent, not ours or damaged: then it is written anew."""
    try:
        with opened_trusted(folder / NAME) as file:
            content = os.pread(file, MOST_BYTES, 0)
        data = json.loads(content, object_pairs_hook=unique_keys)
        if data["format"] != FORMAT:
            return {}
        return {name: digest for name, digest in data["digests"].items() if isinstance(digest, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
