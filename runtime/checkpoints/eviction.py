"""Which checkpoint is worth least: recency, and the recomputation saved per byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from runtime.checkpoints.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Worth:
    """What speaks for a checkpoint.

    saved_tokens: tokens that would be processed again without it, back to the next checkpoint above; bytes: that its
    eviction frees, pages that others share not counted; age: uses of other checkpoints since its own last one, >= 1.
    """

    saved_tokens: int
    bytes: int
    age: int


def worth(measured: Worth) -> float:
    """Tokens saved per byte and age.

    The two terms of Marconi (arXiv 2411.19379: recency and FLOP efficiency), multiplied instead of summed, so that
    there is no weight to tune; dividing by the age is hyperbolic caching (Blankstein et al., USENIX ATC 2017).
    """
    return measured.saved_tokens / (measured.bytes * measured.age)


class Ranking:
    """The checkpoints of the device's rows by their worth, of all of them in a few array operations.

    A row with nothing in it, and one that `unmeasured` still has, are ranked last. sizes: bytes that the eviction of
    each row's checkpoint frees, [rows], as they are at the moment.
    """

    def __init__(self, rows: int, sizes: Callable[[], np.ndarray]) -> None:
        self._at: list[Checkpoint | None] = [None] * rows
        self._saved, self._used, self._sizes = np.full(rows, np.inf), np.zeros(rows), sizes
        self._stale: set[int] = set()

    def put(self, row: int, checkpoint: Checkpoint) -> None:
        """A row has a checkpoint, which is to be measured."""
        self._at[row] = checkpoint
        self._stale.add(row)

    def take(self, row: int) -> None:
        """A row has none any more."""
        self._at[row], self._saved[row] = None, np.inf
        self._stale.discard(row)

    def use(self, row: int, clock: int) -> None:
        """Its checkpoint was used."""
        self._used[row] = clock

    def changed(self, row: int) -> None:
        """What its checkpoint saves is another than before."""
        self._stale.add(row)

    def unmeasured(self) -> list[tuple[int, Checkpoint]]:
        """(row, checkpoint) of those of which it is to be told."""
        return [(row, found) for row in self._stale if (found := self._at[row]) is not None]

    def measured(self, row: int, saved_tokens: int) -> None:
        """What its checkpoint saves."""
        self._saved[row] = saved_tokens
        self._stale.discard(row)

    def ascending(self, now: int) -> Iterator[tuple[float, Checkpoint]]:
        """(worth, checkpoint) of every row that has one, the least worth first. now: after every use."""
        worths = self._saved / (self._sizes() * (now - self._used))
        for row in _ascending(worths):
            if (found := self._at[row]) is not None:
                yield float(worths[row]), found


def _ascending(values: np.ndarray) -> Iterator[int]:
    """Indices of the least, then of the next ...; the first is nearly always all that is asked for."""
    if not values.size:
        return
    first = int(values.argmin())
    yield first
    yield from (index for index in np.argsort(values, kind="stable").tolist() if index != first)
