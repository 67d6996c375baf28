"""Counts of the steps that requests took, by what may bear on how many drafts were accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """What a step of one request was like. accepted: tokens, 1 .. verified + 1; batch: requests in the step."""

    verified: int
    accepted: int
    batch: int
    temperature: float
    resumed: bool

    @property
    def examined(self) -> int:
        """Drafts whose predecessors were all accepted."""
        return min(self.accepted, self.verified)


@dataclass(frozen=True)
class Share:
    """Accepted drafts out of those examined; sums, or nan for a rate of nothing."""

    accepted: float = 0.0
    examined: float = 0.0

    @property
    def rate(self) -> float:
        """0 .. 1."""
        return self.accepted / self.examined if self.examined else math.nan

    def __str__(self) -> str:
        return f"{self.rate:.0%}" if self.examined else "none"


@dataclass
class Tally:
    """Steps by kind, and of each draft position [accepted, examined]. Counts become fractions where they are halved."""

    counts: dict[Step, float] = field(default_factory=dict)
    positions: list[list[float]] = field(default_factory=list)

    def add(self, counts: Mapping[Step, float]) -> None:
        """Count more steps."""
        for step, count in counts.items():
            self.counts[step] = self.counts.get(step, 0.0) + count
            while len(self.positions) < step.verified:
                self.positions.append([0.0, 0.0])
            for position in range(step.examined):
                self.positions[position][0] += count * (position < step.accepted - 1)
                self.positions[position][1] += count

    def halve(self) -> None:
        """Let the past count half; what has become rare is forgotten."""
        counts = {step: count / 2 for step, count in self.counts.items() if count > 0.01}
        self.counts, self.positions = {}, []
        self.add(counts)

    def share(self, chosen: Callable[[Step], bool] = lambda step: True) -> Share:
        """Acceptance over the steps chosen."""
        steps = [(step, count) for step, count in self.counts.items() if chosen(step)]
        accepted = sum(count * (step.accepted - 1) for step, count in steps)
        return Share(accepted, sum(count * step.examined for step, count in steps))

    def per_step(self, value: Callable[[Step], float]) -> float:
        """Mean over steps; nan without any."""
        total = sum(self.counts.values())
        return sum(count * value(step) for step, count in self.counts.items()) / total if total else math.nan

    def per_token(self, value: Callable[[Step], float]) -> float:
        """Mean over accepted tokens, the bonus tokens too; nan without any."""
        total = sum(count * step.accepted for step, count in self.counts.items())
        weighed = sum(count * step.accepted * value(step) for step, count in self.counts.items())
        return weighed / total if total else math.nan


def merged(tallies: list[Tally]) -> Tally:
    """The sum."""
    result = Tally()
    for tally in tallies:
        result.add(tally.counts)
    return result
