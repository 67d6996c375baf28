"""Journals: a study of optuna as a file of a folder that all may write, whole after a kill, set aside when damaged."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from dsl.files import read_regular

JOURNAL_BYTES = 256 << 20


class _Lock:
    """A lock of the system's, as optuna wants one: a process that is killed lets go of it."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Let go of it."""
        self._lock.release()


def journal(folder: Path, name: str) -> Path:
    """Where the study `name` lies."""
    return folder / f"{name}.journal"


def open_journal(path: Path) -> JournalStorage:
    """A journal, made if it is new. Raises OSError where none can be, ValueError where something else is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        _mend(path)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_Lock(_lock(path))))  # type: ignore[arg-type]


def set_aside(path: Path) -> Path:
    """Move a damaged journal, or what lies in its place, out of the way. Returns where it is now. Raises OSError."""
    aside = path.with_name(path.name + ".damaged")
    with _lock(path):
        os.replace(path, aside)
    return aside


def _lock(path: Path) -> FileLock:
    return FileLock(f"{path}.lock")


def _mend(path: Path) -> None:
    """Cut off a last line that a killed process left unfinished: it was never acted upon."""
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise ValueError("it is not a regular file")
    content = read_regular(path, JOURNAL_BYTES)
    if len(content) > JOURNAL_BYTES:
        raise ValueError(f"it has more than {JOURNAL_BYTES} bytes")
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
