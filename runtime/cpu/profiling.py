"""Time per kernel over everything launched inside a context, host graphs included."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class KernelTime:
    """Of all launches of the kernels of one name: how many, and their seconds together and at most."""

    kernel: str
    launches: int
    seconds: float
    longest: float


class Profile:
    """Collects launches of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, list[int]] = {}

    def add(self, kernel: str, nanoseconds: int) -> None:
        with self._lock:
            self._times.setdefault(kernel, []).append(nanoseconds)

    def add_replay(self, kernels: Sequence[str], times: Sequence[int]) -> None:
        """times[k]: when launch k began, times[-1]: the end."""
        for k, kernel in enumerate(kernels):
            self.add(kernel, times[k + 1] - times[k])

    def kernels(self) -> list[KernelTime]:
        """Slowest first."""
        with self._lock:
            rows = [KernelTime(n, len(t), sum(t) * 1e-9, max(t) * 1e-9) for n, t in self._times.items()]
        return sorted(rows, key=lambda row: -row.seconds)

    def table(self) -> str:
        """One line per kernel: its share, launches, and milliseconds in all, microseconds on average and at most."""
        rows = self.kernels()
        total = sum(row.seconds for row in rows) or 1.0
        lines = [f"{'kernel':40} {'share':>6} {'launches':>9} {'total ms':>10} {'mean us':>10} {'max us':>10}"]
        for row in rows:
            lines.append(
                f"{row.kernel:40} {row.seconds / total:6.1%} {row.launches:9} {row.seconds * 1e3:10.2f} "
                f"{row.seconds / row.launches * 1e6:10.1f} {row.longest * 1e6:10.1f}"
            )
        return "\n".join(lines)


#: Told the duration of every launch and replay while there is one.
current: Profile | None = None


@contextlib.contextmanager
def profile(file: TextIO | None = None) -> Iterator[Profile]:
    """Time every launch and replay inside, print the table to `file` (standard error) at the end. Does not nest."""
    global current
    collected = Profile()
    before, current = current, collected
    try:
        yield collected
    finally:
        current = before
        print(collected.table(), file=file or sys.stderr)
