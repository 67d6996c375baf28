"""Files that one process of ours keeps for the next: read only if nobody else could have written them."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODE = 0o644
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def opened_trusted(path: Path) -> Iterator[int]:
    """Descriptor of a regular file, no link, that belongs to this user or to root and that nobody else may write to.

    Raises OSError: also PermissionError for a file that is none of that.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        own = found.st_uid in (0, os.geteuid()) and not found.st_mode & WRITABLE_BY_OTHERS
        if not stat.S_ISREG(found.st_mode) or not own:
            raise PermissionError(f"{path} could have been written by others")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Inside, no other process writes to the folder, which is made. Raises OSError, BlockingIOError while one does."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Descriptor of a new file that takes the place of `path` at the end, whole, or never. For the sole writer.

    What a writer that was killed left behind is removed. Raises OSError.
    """
    partial = path.parent / ".partial"
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
