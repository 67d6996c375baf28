"""Reading files that somebody else named: regular ones only, and no further than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: str | Path, limit: int) -> bytes:
    """The first `limit + 1` bytes of a regular file at most; more than `limit` means that it is too long.

    Never waits: a FIFO, socket, device or folder is refused, and links are followed. Raises OSError, its `strerror` in
    words, also for a path that no file can have.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    with open(descriptor, "rb") as file:
        return file.read(limit + 1)
