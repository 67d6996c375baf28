"""Which checkpoint is worth least: recency, and the recomputation saved per byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


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
    """The checkpoints of the device's rows by a lower bound of their worth, which a few array operations put in order.

    A density is bound * age: infinite of a row with nothing in it, and of one that `unmeasured` still has.
    """

    def __init__(self, rows: int) -> None:
        self._at: list[Any] = [None] * rows
        self._density, self._used = np.full(rows, np.inf), np.zeros(rows)
        self._stale: set[int] = set()

    def put(self, row: int, checkpoint: Any) -> None:
        """A row has a checkpoint, which is to be measured."""
        self._at[row] = checkpoint
        self._stale.add(row)

    def take(self, row: int) -> None:
        """A row has none any more."""
        self._at[row], self._density[row] = None, np.inf
        self._stale.discard(row)

    def use(self, row: int, clock: int) -> None:
        """Its checkpoint was used."""
        self._used[row] = clock

    def changed(self, row: int) -> None:
        """What its checkpoint saves, or what its going would free, is another than before."""
        self._stale.add(row)

    def unmeasured(self) -> list[Any]:
        """Checkpoints whose density is to be told."""
        return [self._at[row] for row in self._stale]

    def measured(self, row: int, density: float) -> None:
        """The density of its checkpoint."""
        self._density[row] = density
        self._stale.discard(row)

    def ascending(self, now: int) -> Iterator[tuple[float, Any]]:
        """(bound, checkpoint) of every row that has one, the least bound first. now: later than every use."""
        bounds = self._density / (now - self._used)
        for row in np.argsort(bounds, kind="stable"):
            if self._at[row] is not None:
                yield bounds[row], self._at[row]
