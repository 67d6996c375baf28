"""The writer behind the engine's back without its thread: it writes when a run says so, so that runs repeat."""

from __future__ import annotations

from collections import deque

from runtime.checkpoints.image import CheckpointImage
from runtime.checkpoints.writer import Done, Finished, WriteBehind
from runtime.engine import Engine


class PatientWriter(WriteBehind):
    """Takes images and leaves them until `work`. As WriteBehind otherwise; `flush` and `close` write all."""

    def __init__(self, inner: WriteBehind) -> None:
        self.directory, self.capacity = inner.directory, inner.capacity
        self.written = self.present = self.failed = self.rejected = 0
        self._waiting: deque[tuple[CheckpointImage, Done]] = deque()
        self._finished: deque[tuple[Finished, Done]] = deque()
        self._busy = self._closing = False
        self._last = None

    def put(self, image: CheckpointImage, done: Done) -> bool:
        if len(self._waiting) >= self.capacity or self._closing:
            self.rejected += 1
            return False
        self._waiting.append((image, done))
        return True

    def work(self, count: int) -> None:
        """Write so many."""
        for _ in range(min(count, len(self._waiting))):
            image, done = self._waiting.popleft()
            self._finished.append((self._write(image), done))

    def collect(self) -> list[Finished]:
        finished, self._finished = list(self._finished), deque()
        for result, done in finished:
            done(result.error)
        return [result for result, _ in finished]

    def flush(self, timeout: float | None = None) -> bool:
        self.work(len(self._waiting))
        return True

    def close(self, timeout: float | None = None) -> bool:
        self._closing = True
        return self.flush()


def make_patient(engine: Engine) -> PatientWriter | None:
    """Put a patient writer in the place of an engine's, if it has one."""
    tiers = engine.scheduler.tiers
    if tiers.writer is not None:
        tiers.writer.close()
        tiers.writer = PatientWriter(tiers.writer)
    return tiers.writer
