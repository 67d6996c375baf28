"""Counters of an engine, and what can be read from them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from runtime.checkpoints.checkpoint import CheckpointCounts
from runtime.checkpoints.pools import Pools
from runtime.observe.histogram import Histogram
from runtime.request import Request

TIMELINE = 1 << 14


@dataclass
class Counters:
    """Kept while the engine runs. timeline: (host ns since the last step's replay, replay ns) of the latest steps.

    recomputed_tokens: prefilled although they had been processed before; accepted: as of a request, over all.
    """

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    preemptions: int = 0
    steps: int = 0
    output_tokens: int = 0
    prefilled_tokens: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    prefill_ns: int = 0
    accepted: dict[int, list[int]] = field(default_factory=dict)
    step_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    first_token_seconds: Histogram = field(default_factory=Histogram)
    timeline: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=TIMELINE))

    def finish(self, request: Request) -> None:
        """A request has ended; one that is rewound afterwards ends again."""
        self.finished += 1
        self.cancelled += request.finish_reason == "cancelled"
        self.expired += request.finish_reason == "deadline"
        self.failed += request.finish_reason == "error"


@dataclass(frozen=True)
class Stats:
    """A snapshot of an engine.

    finished: times that a request ended, whatever the reason, again after a rewind; cancelled, expired, failed: those
    that were cancelled, late, or in an interrupted step. acceptance: (accepted, proposed) per draft position; memory:
    bytes by role; recomputed_tokens: prefilled although they had been processed before; refused_files: checkpoint files
    not read.
    """

    requests: int
    waiting: int
    active: int
    finished: int
    cancelled: int
    expired: int
    failed: int
    preemptions: int
    steps: int
    output_tokens: int
    tokens_per_step: float
    acceptance: list[tuple[int, int]]
    prefilled_tokens: int
    restored_tokens: int
    recomputed_tokens: int
    checkpoints: int
    checkpoint_counts: CheckpointCounts
    graphs: int
    pools: Pools
    refused_files: int
    step_seconds: Histogram
    queue_seconds: Histogram
    first_token_seconds: Histogram
    canary_checked: int
    canary_differed: int
    acceptance_collapses: int
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
