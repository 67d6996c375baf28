"""Timing two ways of doing the same thing in turns, so that what else the machine does hits both alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

Run = Callable[[], object]
#: Seconds of the median call of a burst of so many.
Burst = Callable[[int], float]

#: Between two bursts: longer than idle threads of OpenMP spin.
REST_SECONDS = 0.05
#: A burst repeats a call until it lasts about this long.
BURST_SECONDS = 0.004
ROUNDS, QUICK_ROUNDS = 31, 7


@dataclass(frozen=True)
class Figure:
    """One measured value and what is asked of it: at least `required` if the unit is `x` (a ratio), else at most."""

    name: str
    size: str
    value: float
    unit: str
    required: float
    detail: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the requirement is met."""
        return self.value >= self.required if self.unit == "x" else self.value <= self.required

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class Contest:
    """`ours` against `theirs`, which compute the same, and the ratio of their times that is required.

    `check` runs ours and raises AssertionError if the result is wrong. `rival` names the other side; `torch` runs its
    `theirs` in a process of its own (rival.py)."""

    name: str
    size: str
    required: float
    ours: Run
    check: Run
    rival: str = "torch"
    theirs: Run | None = None

    def measure(self, rounds: int, theirs: Burst) -> Figure:
        """Median over rounds of (time of theirs / time of ours), each round one burst of both, in changing order."""
        self.check()
        sides: dict[str, Burst] = {"ours": lambda repeats: burst(self.ours, repeats), self.rival: theirs}
        repeats = {name: _repeats(run) for name, run in sides.items()}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                time.sleep(REST_SECONDS)
                times[name].append(sides[name](repeats[name]))
        ratio = median(theirs / ours for ours, theirs in zip(times["ours"], times[self.rival], strict=True))
        detail = {f"{name}_us": 1e6 * median(found) for name, found in times.items()}
        return Figure(self.name, self.size, ratio, "x", self.required, detail)


def burst(run: Run, repeats: int) -> float:
    """Seconds of the median of `repeats` calls, after two that wake threads and warm caches."""
    run()
    run()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return median(times)


def _repeats(run: Burst) -> int:
    run(1)
    return max(1, min(1000, int(BURST_SECONDS / run(3))))
