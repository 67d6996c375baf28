"""Write checkpoints behind the engine's back: a thread that writes, and results that wait until they are collected."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.files import Key
from runtime.checkpoints.image import CheckpointImage
from runtime.errors import RuntimeStateError

CAPACITY = 16

Done = Callable[[Exception | None], None]


@dataclass(frozen=True)
class Finished:
    """What became of an image. repeated: the error is that of the write before, so it needs no new report."""

    key: Key
    error: Exception | None
    repeated: bool


class WriteBehind:
    """Writes images to a directory in a daemon thread, in order, one at a time.

    All methods belong to one thread, that of the engine. An image's tensors are not copied: they must stay as they are
    until its `done` was called. written, present, failed, rejected: images so far (present: there already or too large;
    rejected: not taken, because `capacity` wait).
    """

    def __init__(self, directory: CheckpointDirectory, capacity: int = CAPACITY) -> None:
        self.directory, self.capacity = directory, capacity
        self.written = self.present = self.failed = self.rejected = 0
        self._changed = threading.Condition()
        self._waiting: deque[tuple[CheckpointImage, Done]] = deque()
        self._finished: deque[tuple[Finished, Done]] = deque()
        self._busy = self._closing = False
        self._last: object = None
        self._thread = threading.Thread(target=self._run, name="stepforge-checkpoints", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Images that were put and are not written yet."""
        return len(self._waiting) + self._busy

    def put(self, image: CheckpointImage, done: Done) -> bool:
        """Have an image written; False, and `done` never called, if too many wait or the writer is closed.

        done: called by `collect`, in its thread, with the error or None.
        """
        with self._changed:
            if len(self._waiting) >= self.capacity or self._closing or not self._thread.is_alive():
                self.rejected += 1
                return False
            self._waiting.append((image, done))
            self._changed.notify_all()
            return True

    def collect(self) -> list[Finished]:
        """Call `done` of all images that are finished, and list them in order."""
        with self._changed:
            finished = list(self._finished)
            self._finished.clear()
        for result, done in finished:
            done(result.error)
        return [result for result, _ in finished]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything that was put is on disk or has failed; False if that took longer, in seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self.pending or not self._thread.is_alive(), timeout)
            return not self.pending

    def close(self, timeout: float | None = None) -> bool:
        """Write what was put, then end; False if that took longer. `collect` still gives the results."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                image, done = self._waiting.popleft()
                self._busy = True
            result = self._write(image)
            with self._changed:
                self._finished.append((result, done))
                self._busy = False
                self._changed.notify_all()

    def _write(self, image: CheckpointImage) -> Finished:
        key, error = (image.position, image.digest), None
        try:
            written = self.directory.write(image)
            self.written += written
            self.present += not written
        except Exception as caught:
            error = caught
            self.failed += 1
        last, self._last = self._last, None if error is None else _mistake(error)
        return Finished(key, error, error is not None and self._last == last)


def _mistake(error: Exception) -> object:
    """What two errors have in common that need one report: all but the file."""
    if isinstance(error, RuntimeStateError):
        return type(error), error.fields.get("detail")
    return type(error), str(error)
