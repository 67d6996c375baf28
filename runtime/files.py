"""Reading files that somebody else named: regular ones only, and no further than a limit."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


@contextmanager
def opened_regular(path: str | Path) -> Iterator[BufferedReader]:
    """A regular file. Never waits: a FIFO, socket, device or folder is refused, and links are followed.

    Raises OSError, its `strerror` in words, also for a path that no file can have.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    with open(descriptor, "rb") as file:
        yield file


def read_regular(path: str | Path, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes. Raises OSError."""
    with opened_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return content


def sha256_of(path: str | Path, limit: int) -> str:
    """Hash of a regular file of at most `limit` bytes, in hexadecimal. Raises OSError."""
    digest, left = hashlib.sha256(), limit
    with opened_regular(path) as file:
        while chunk := file.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
            digest.update(chunk)
    return digest.hexdigest()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of JSON in which a key may be given once. Raises ValueError."""
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key is given twice")
    return data
