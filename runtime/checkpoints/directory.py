"""Checkpoints of one build in a folder that several processes share: immutable files, found by the text they hold."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from runtime.checkpoints.files import (
    Key,
    build_meta,
    file_name,
    key_of,
    opened,
    page_sha256,
    place,
    read_checkpoint,
    read_needs,
    read_page,
    reason,
    sync_folder,
    write_checkpoint,
    write_page,
)
from runtime.checkpoints.image import CheckpointImage, ImageLayout, PageImage, PageKey, image_fault
from runtime.checkpoints.retention import prefix_digests
from runtime.errors import (
    BadOption,
    CheckpointDirectoryBusy,
    CheckpointDirectoryUnusable,
    CheckpointFileError,
    CheckpointNotWritten,
)
from runtime.whole_file import put_file, sweep_partials

BUILD = "build.json"
LOCK = "lock"
LOCK_TIMEOUT_S = 30.0
LOCK_POLL_S = 0.01
# A folder that changed less than this before it was listed may change again without a new mtime.
SETTLED_NS = 2_000_000_000

Signature = tuple[int, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A file of ours as it was listed. used: mtime in ns, which is when it was last written or read."""

    size: int
    used: int


class CheckpointDirectory:
    """`path`/<build>/: build.json, checkpoints/<position>-<digest>.safetensors, pages/<n>-<digest>.safetensors.

    One writer at a time over all processes, under a lock that the system releases when its holder dies; readers take
    none. A file that cannot be used is reported once, stays where it is, and is not tried again until it changes.
    max_bytes: size that a write does not leave exceeded, of this build's files. Methods may be called from any thread.
    Raises CheckpointDirectoryUnusable or BadOption.
    """

    def __init__(self, path: str | Path, layout: ImageLayout, max_bytes: int | None = None) -> None:
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise BadOption(option="max_bytes", value=max_bytes, allowed="None or a number of bytes")
        build = _build(layout)
        self.layout, self.max_bytes = layout, max_bytes
        self.path = place(path, "path") / hashlib.sha256(build).hexdigest()[:16]
        self._build = build
        self._checkpoints, self._pages = self.path / "checkpoints", self.path / "pages"
        self._index = _Index(self._checkpoints)
        self._refusals = _Refusals()
        self._needs: dict[Key, tuple[PageKey, ...]] = {}
        self._sums: dict[PageKey, str] = {}
        self._prepare()
        with suppress(OSError):
            self._sweep_partials()

    # Reading

    def find(self, tokens: Sequence[int], longer_than: int = 0) -> Key | None:
        """The checkpoint of the longest prefix of `tokens` that has more than `longer_than` tokens, of any process."""
        index = self._index.refreshed()
        positions = {position for position, _ in index if longer_than < position <= len(tokens)}
        keys = reversed(prefix_digests(tokens, positions))
        return next((key for key in keys if key in index and not self._refusals.blocks(key)), None)

    def read(self, key: Key) -> CheckpointImage | None:
        """A checkpoint, verified; None if it, or a page of it, has gone.

        Raises CheckpointFileDamaged, -Foreign or -Format with the file that keeps it from being used.
        """
        path = self._checkpoints / file_name(key)
        try:
            image, needs = self._tried(key, path, read_checkpoint, key)
            shared = tuple(self._shared_page(key, page, sha256) for page, sha256 in needs.items())
        except FileNotFoundError:
            return None
        _touch(path)
        self._needs[key] = tuple(needs)
        self._sums |= needs
        return replace(image, pages=shared + image.pages)

    def _shared_page(self, key: Key, page: PageKey, sha256: str) -> PageImage:
        return self._tried(key, self._pages / file_name(page), read_page, page, sha256)

    def _tried(self, key: Key, path: Path, read: Callable[..., T], *args: Any) -> T:
        """read(path, layout, ...); a file that fails is not tried again for `key` as long as it stays as it is."""
        signature = _signature(path)
        try:
            return read(path, self.layout, *args)
        except (CheckpointFileError, FileNotFoundError):
            self._refusals.note(key, path, signature)
            raise

    def keys(self) -> list[Key]:
        """All checkpoints that `find` may give, ascending."""
        return sorted(key for key in self._index.refreshed() if not self._refusals.blocks(key))

    @property
    def bytes(self) -> int:
        """Bytes of all checkpoints and pages of this build on disk."""
        with self._usable():
            return sum(e.size for folder in (self._checkpoints, self._pages) for e in _listing(folder).values())

    # Writing

    def write(self, image: CheckpointImage) -> bool:
        """Add a checkpoint and those of its pages that are not there; False if it is there or larger than max_bytes.

        Raises CheckpointNotWritten or CheckpointDirectoryBusy, then nothing is left of it; CheckpointDirectoryUnusable,
        also if it was written but what is too old cannot be removed.
        """
        key = (image.position, image.digest)
        path = self._checkpoints / file_name(key)
        if self.max_bytes is not None and image.bytes > self.max_bytes:
            return False
        if self._has(key):
            _touch(path)
            return False
        fault = image_fault(image, self.layout)
        if fault is not None:
            raise CheckpointNotWritten(path=path, detail=fault)
        self._prepare()
        try:
            with self._locked():
                return not self._has(key) and self._write(path, key, image)
        except OSError as error:
            raise CheckpointNotWritten(path=path, detail=reason(error)) from error

    def _write(self, path: Path, key: Key, image: CheckpointImage) -> bool:
        added: list[Path] = []
        try:
            needs = {page.key: self._put_page(page, added) for page in image.pages if page.key[0] > 0}
            sync_folder(self._pages)
            _note_new(path, added)
            write_checkpoint(path, image, self.layout, needs)
            sync_folder(self._checkpoints)
        except BaseException:
            for file in reversed(added):
                with suppress(OSError):
                    file.unlink()
            raise
        self._needs[key] = tuple(needs)
        self._sums |= needs
        if self.max_bytes is not None:
            with self._usable():
                self._sweep()
        return True

    def _put_page(self, page: PageImage, added: list[Path]) -> str:
        """The sha256 of a page that is on disk now."""
        path = self._pages / file_name(page.key)
        if _signature(path) is not None and not self._refusals.stands(path):
            return self._sums.get(page.key) or page_sha256(page, self.layout)
        _note_new(path, added)
        return write_page(path, page, self.layout)

    def _has(self, key: Key) -> bool:
        """Whether a checkpoint is on disk, for all that is known in a usable state."""
        return _signature(self._checkpoints / file_name(key)) is not None and not self._refusals.blocks(key)

    def remove(self, key: Key) -> bool:
        """Remove a checkpoint; its pages go with the next sweep. Raises CheckpointDirectoryUnusable."""
        with self._usable():
            return _removed(self._checkpoints / file_name(key))

    def sweep(self) -> int:
        """Remove stale files and pages that no checkpoint needs, then what was used least recently, down to max_bytes.

        Returns the bytes freed. Raises CheckpointDirectoryBusy or CheckpointDirectoryUnusable.
        """
        self._prepare()
        with self._usable(), self._locked():
            self._sweep_partials()
            return self._sweep()

    def _sweep(self) -> int:
        checkpoints, pages = _listing(self._checkpoints), _listing(self._pages)
        self._needs = {key: self._needed(key) for key in checkpoints}
        self._sums = {page: sha256 for page, sha256 in list(self._sums.items()) if page in pages}
        users = Counter(page for needs in self._needs.values() for page in needs)
        sizes = {page: entry.size for page, entry in pages.items()}
        before = total = sum(sizes.values()) + sum(entry.size for entry in checkpoints.values())
        total -= self._remove_pages(sizes, [page for page in pages if not users[page]])
        for key in sorted(checkpoints, key=lambda key: (checkpoints[key].used, key)):
            if self.max_bytes is None or total <= self.max_bytes:
                break
            _removed(self._checkpoints / file_name(key))
            needs = self._needs.pop(key)
            users.subtract(needs)
            total -= checkpoints[key].size + self._remove_pages(sizes, [page for page in needs if not users[page]])
        return before - total

    def _remove_pages(self, sizes: dict[PageKey, int], pages: Sequence[PageKey]) -> int:
        for page in pages:
            _removed(self._pages / file_name(page))
        return sum(sizes.get(page, 0) for page in pages)

    def _needed(self, key: Key) -> tuple[PageKey, ...]:
        """The shared pages of a checkpoint; none if its file cannot be used."""
        if key in self._needs:
            return self._needs[key]
        with suppress(CheckpointFileError, FileNotFoundError):
            return tuple(read_needs(self._checkpoints / file_name(key), self.layout, key))
        return ()

    def _sweep_partials(self) -> None:
        for folder in (self.path, self._checkpoints, self._pages):
            sweep_partials(folder)

    # The folder

    def _prepare(self) -> None:
        """Have the folders, for the user alone, and a build.json that describes this build."""
        with self._usable():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.path, self._checkpoints, self._pages):
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.is_symlink():
                    raise CheckpointDirectoryUnusable(path=folder, detail="it is a symbolic link")
            self._describe(self.path / BUILD)

    def _describe(self, path: Path) -> None:
        try:
            with opened(path) as stream:
                found = stream.read(len(self._build) + 1)
        except FileNotFoundError:
            put_file(path, [self._build])
            return
        except CheckpointFileError as error:
            raise CheckpointDirectoryUnusable(path=path, detail=error.fields["detail"]) from error
        if found != self._build:
            raise CheckpointDirectoryUnusable(path=path, detail="it does not describe this build; remove its folder")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise CheckpointDirectoryUnusable(path=error.filename or self.path, detail="it is no folder") from error
        except OSError as error:
            raise CheckpointDirectoryUnusable(path=error.filename or self.path, detail=reason(error)) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with FileLock(self.path / LOCK, mode=0o600).acquire(LOCK_TIMEOUT_S, poll_interval=LOCK_POLL_S):
                yield
        except Timeout as error:
            raise CheckpointDirectoryBusy(path=self.path, seconds=LOCK_TIMEOUT_S) from error


class _Index:
    """The checkpoints in a folder, listed again when it may have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: tuple[int, frozenset[Key]] | None = None

    def refreshed(self) -> frozenset[Key]:
        """The keys now. A folder that is gone has none; raises CheckpointDirectoryUnusable if it cannot be listed."""
        try:
            now, changed = time.time_ns(), os.stat(self._folder).st_mtime_ns
            if self._listed is not None and self._listed[0] == changed:
                return self._listed[1]
            keys = frozenset(key for name in os.listdir(self._folder) if (key := key_of(name)))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise CheckpointDirectoryUnusable(path=self._folder, detail=reason(error)) from error
        self._listed = (changed, keys) if now - changed > SETTLED_NS else None
        return keys


class _Refusals:
    """Files that could not be used, with what they looked like, and the checkpoints that need them."""

    def __init__(self) -> None:
        self._files: dict[Path, Signature | None] = {}
        self._needed_by: dict[Key, Path] = {}

    def note(self, key: Key, path: Path, signature: Signature | None) -> None:
        """`key` cannot be read as long as `path` looks like this (None: as long as it is not there)."""
        self._files[path] = signature
        self._needed_by[key] = path

    def stands(self, path: Path) -> bool:
        """Whether `path` was refused and still looks the same."""
        return path in self._files and self._files[path] == _signature(path)

    def blocks(self, key: Key) -> bool:
        """Whether a checkpoint needs such a file."""
        return key in self._needed_by and self.stands(self._needed_by[key])


def _build(layout: ImageLayout) -> bytes:
    """What decides whether two processes can share checkpoints, as JSON."""
    shapes = {
        kind: {name: f"{dtype} {list(shape)}" for name, (shape, dtype) in tensors.items()}
        for kind, tensors in (("parts", layout.parts), ("page", layout.page))
    }
    build = {**build_meta(layout), "page_size": layout.page_size, **shapes}
    return (json.dumps(build, indent=1, sort_keys=True) + "\n").encode()


def _listing(folder: Path) -> dict[Key, Entry]:
    """The files of ours in a folder. Raises OSError."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            key = key_of(entry.name)
            with suppress(FileNotFoundError):
                if key is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found[key] = Entry(status.st_size, status.st_mtime_ns)
    return found


def _signature(path: Path) -> Signature | None:
    """What changes when a file is written again; None if there is no file."""
    with suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def _touch(path: Path) -> None:
    """Make a file the most recently used one, if it may be."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _note_new(path: Path, added: list[Path]) -> None:
    """Add `path` to what a failed write takes away again, unless something is there already."""
    if _signature(path) is None:
        added.append(path)


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
