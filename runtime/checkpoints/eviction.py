"""Which checkpoint is worth least: recency, and the recomputation saved per byte."""

from __future__ import annotations

from collections.abc import Iterator
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
    return tokens_per(measured.saved_tokens, measured.bytes, measured.age)


def tokens_per(saved_tokens: int, size: int, age: int) -> float:
    """`worth`, of the numbers as they are. Never more of a larger size: that makes a bound of an upper one of bytes."""
    return saved_tokens / (size * age)


class Ranking:
    """The checkpoints of the device's rows by a lower bound of their worth, which a few array operations put in order.

    A row with nothing in it, and one that `unmeasured` still has, are ranked last.
    """

    def __init__(self, rows: int) -> None:
        self._at: list[Checkpoint | None] = [None] * rows
        self._saved, self._bytes, self._used = np.full(rows, np.inf), np.ones(rows), np.zeros(rows)
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
        """What its checkpoint saves, or what its going would free, is another than before."""
        self._stale.add(row)

    def unmeasured(self) -> list[tuple[int, Checkpoint]]:
        """(row, checkpoint) of those of which it is to be told."""
        return [(row, found) for row in self._stale if (found := self._at[row]) is not None]

    def measured(self, row: int, saved_tokens: int, most_bytes: int) -> None:
        """What its checkpoint saves, and what its going frees at most."""
        self._saved[row], self._bytes[row] = saved_tokens, most_bytes
        self._stale.discard(row)

    def ascending(self, now: int) -> Iterator[tuple[float, int, Checkpoint]]:
        """(bound, saved tokens, checkpoint) of every row that has one, the least bound first. now: after every use."""
        bounds = self._saved / (self._bytes * (now - self._used))
        for row in np.argsort(bounds, kind="stable").tolist():
            if (found := self._at[row]) is not None:
                yield bounds[row], self._saved[row], found
