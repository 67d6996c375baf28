"""Files that are there whole or not at all, and of which a writer that was killed leaves nothing for long.

A file is written beside its name, locked as long as its writer lives, and takes its place at the end. A partial file
that nobody holds a lock on is stale: the next writer to its folder removes it. `codegen/whole_file.py` does the same.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.errors import OutputExists

PARTIAL = ".stepforge-partial"
PRIVATE, NORMAL = 0o600, 0o666  # modes of new files; the umask takes its part
CHUNK = 4 << 20


@contextmanager
def output_file(path: Path, overwrite: bool) -> Iterator[int]:
    """Descriptor of the file that a user has named, there at the end, whole, or never; its mode is any new file's.

    Whatever is at `path` is looked at before anything is done, and again at the end. Raises OutputExists if something
    is there and it may not be overwritten, OSError or ValueError where no file can be.
    """
    if not overwrite and os.path.lexists(path):
        raise OutputExists(path=path)
    with suppress(OSError):
        sweep_partials(path.parent)
    try:
        with whole_file(path, NORMAL, overwrite) as descriptor:
            yield descriptor
    except FileExistsError:
        raise OutputExists(path=path) from None


@contextmanager
def whole_file(path: Path, mode: int = PRIVATE, replace: bool = True) -> Iterator[int]:
    """Descriptor of a new file that is `path` at the end, on the disk, or never; then nothing has changed.

    replace: it may take the place of another file, else FileExistsError is raised. Raises OSError.
    """
    partial, descriptor = _partial(path.parent, mode)
    try:
        yield descriptor
        os.fsync(descriptor)
        _name(partial, path, replace)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    finally:
        os.close(descriptor)


def put_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Have `path` hold exactly `chunks`, for its owner only, or be as it was. Raises OSError."""
    with whole_file(path) as descriptor:
        write_chunks(descriptor, chunks)


def write_chunks(descriptor: int, chunks: Iterable[bytes | memoryview]) -> None:
    """Write all of `chunks`, one after another. Raises OSError."""
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest[:CHUNK]) :]


def sweep_partials(folder: Path) -> None:
    """Remove what writers that died have left in `folder`. Raises OSError if it cannot be listed."""
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(PARTIAL):
            with suppress(OSError):
                _unlink_unlocked(folder / name)


def _partial(folder: Path, mode: int) -> tuple[Path, int]:
    """A new file that is locked as long as its writer lives: an unlocked one is stale."""
    while True:
        partial = folder / f".{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with suppress(OSError):  # a file system without locks: nobody can take the file for a stale one either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            partial.unlink()
            os.close(descriptor)
            raise
        # Between open and flock, a sweep may have taken it for a stale one.
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)


def _name(partial: Path, path: Path, replace: bool) -> None:
    """Give a complete file its name."""
    if replace:
        partial.replace(path)
        return
    try:
        os.link(partial, path)  # unlike a rename, this replaces nothing
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        partial.replace(path)
    else:
        with suppress(OSError):
            partial.unlink()


def _unlink_unlocked(partial: Path) -> None:
    descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()
    finally:
        os.close(descriptor)
