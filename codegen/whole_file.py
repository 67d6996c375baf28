"""Files that are there whole or not at all, whoever else writes the same one, on this machine or another.

A file is written beside its name, locked as long as its writer lives. A partial file that nobody holds a lock on is
stale: the next writer to its folder removes it. `runtime/whole_file.py` does the same.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

from codegen.errors import TuneNotWritten

PARTIAL = ".stepforge-partial"
MODE = 0o666  # of new files; the umask takes its part


def write_whole(path: Path, text: str) -> None:
    """Write a file of autotune, in place of an earlier one. Raises TuneNotWritten."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, text.encode())
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise TuneNotWritten(path=path, detail=getattr(error, "strerror", None) or str(error)) from error


def replace_whole(path: Path, content: bytes) -> None:
    """Have `path` hold exactly `content`, or be as it was. Raises OSError, ValueError where no file can be."""
    sweep_partials(path.parent)
    partial, descriptor = _partial(path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sweep_partials(folder: Path) -> None:
    """Remove what writers that died have left in `folder`; nothing if it cannot be listed."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(PARTIAL):
                with suppress(OSError):
                    _unlink_unlocked(folder / name)


def _partial(folder: Path) -> tuple[Path, int]:
    """A new file that is locked as long as its writer lives: an unlocked one is stale."""
    while True:
        partial = folder / f".{os.getpid()}-{secrets.token_hex(8)}{PARTIAL}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
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


def _unlink_unlocked(partial: Path) -> None:
    descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()
    finally:
        os.close(descriptor)
