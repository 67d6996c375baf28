"""Counters of an engine, and what can be read from them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from runtime.checkpoints.cache import CheckpointCounts
from runtime.request import Request, acceptance

TIMELINE = 1 << 14


@dataclass
class Counters:
    """Kept while the engine runs. timeline: (host ns since the last step's replay, replay ns) of the latest steps."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    steps: int = 0
    output_tokens: int = 0
    prefilled_tokens: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    prefill_ns: int = 0
    accepted: dict[int, list[int]] = field(default_factory=dict)
    timeline: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=TIMELINE))

    def finish(self, request: Request) -> None:
        """Add what a request that ends has to say."""
        self.finished += 1
        self.cancelled += request.finish_reason == "cancelled"
        for drafts, counts in request.accepted.items():
            mine = self.accepted.setdefault(drafts, [0] * len(counts))
            self.accepted[drafts] = [a + b for a, b in zip(mine, counts, strict=True)]


@dataclass(frozen=True)
class Stats:
    """A snapshot of an engine. acceptance: (accepted, proposed) per draft position; memory: bytes by role."""

    requests: int
    waiting: int
    active: int
    finished: int
    cancelled: int
    steps: int
    output_tokens: int
    tokens_per_step: float
    acceptance: list[tuple[int, int]]
    prefilled_tokens: int
    restored_tokens: int
    recomputed_tokens: int
    checkpoints: int
    checkpoint_counts: CheckpointCounts
    pages_in_use: int
    pages: int
    graphs: int
    memory: dict[str, int]


def tokens_per_step(accepted: dict[int, list[int]]) -> float:
    """Mean number of tokens that a slot accepts in a step; nan without a step."""
    steps = sum(map(sum, accepted.values()))
    total = sum(n * count for counts in accepted.values() for n, count in enumerate(counts))
    return total / steps if steps else math.nan


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile; nan of nothing. share: 0 .. 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share else 0)] if ordered else math.nan


__all__ = ["Counters", "Stats", "acceptance", "percentile", "tokens_per_step"]
