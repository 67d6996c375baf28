"""A histogram of durations, cheap enough for every step: fixed buckets, six per decade from 10 us to 100 s."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

STEPS = (1, 1.5, 2.2, 3.3, 4.7, 6.8)
#: Upper bounds in seconds, inclusive; a last bucket takes what is longer.
BOUNDS = (*(float(f"{step}e{exponent}") for exponent in range(-5, 2) for step in STEPS), 100.0)


class Histogram:
    """Durations by bucket. counts: per bucket, not cumulative; sum: seconds.

    One thread adds; others may read a `snapshot`, which is never torn between buckets and `count`.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def snapshot(self) -> Histogram:
        """A copy that stays as it is."""
        copy = Histogram()
        copy.sum, copy.counts = self.sum, self.counts.copy()
        return copy

    @property
    def count(self) -> int:
        """How many were added."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Seconds; nan of nothing."""
        return self.sum / self.count if self.count else math.nan

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(upper bound, how many are at most that), the last bound infinite."""
        total = 0
        for bound, count in zip((*BOUNDS, math.inf), self.counts, strict=True):
            total += count
            yield bound, total

    def quantile(self, share: float) -> float:
        """Seconds that a share 0 .. 1 stays within, interpolated in its bucket; nan of nothing.

        Off by at most the bucket: half as much again. Beyond the last bound, that bound.
        """
        rank, below, low = share * self.count, 0, 0.0
        if not self.count:
            return math.nan
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * max(0.0, rank - below) / count
            below, low = below + count, bound
        return BOUNDS[-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and (self.counts, self.sum) == (other.counts, other.sum)

    __hash__ = None  # type: ignore[assignment]
