"""`engine.checkpoints`: save what is kept to a file, and load it again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from runtime.checkpoints.archive import ArchiveReport, load_archive, save_archive
from runtime.checkpoints.tiers import Tiers


class Store:
    """The published checkpoints of an engine as files."""

    def __init__(
        self, tiers: Tiers, check: Callable[[], None], changing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """check: raises unless the caller may use the engine; changing: scope of what an interruption undoes."""
        self._tiers, self._check, self._changing = tiers, check, changing

    def save(self, path: str | Path) -> ArchiveReport:
        """Write all published checkpoints to one file, whole or not at all. Raises BadOption or
        CheckpointNotWritten."""
        self._check()
        return save_archive(path, self._tiers.images(), self._tiers.device.layout)

    def load(self, path: str | Path) -> int:
        """Publish the checkpoints of a file, as many as have room, the deepest first. Returns how many are there now.

        The file is verified whole before anything is published. Raises CheckpointArchiveNotFound,
        CheckpointFileDamaged, CheckpointFileForeign, CheckpointFileFormat or BadOption, naming it.
        """
        self._check()
        images = load_archive(path, self._tiers.device.layout)
        with self._changing():
            return sum(self._tiers.adopt(image) is not None for image in images)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the checkpoint directory has all that was handed to it; False if that took too long."""
        self._check()
        return self._tiers.flush(timeout)
