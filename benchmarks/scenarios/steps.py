"""Decode steps of one request, timed one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from runtime.engine import Engine

FIRST_ID, LAST_ID = 3, 48_000


@dataclass(frozen=True)
class Promise:
    """A figure and the most or the least that it may be."""

    name: str
    value: float
    bound: float
    at_least: bool

    @property
    def holds(self) -> bool:
        """Whether the figure keeps to its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"name": self.name, "value": self.value, "bound": self.bound, "holds": self.holds}


@dataclass(frozen=True)
class Timed:
    """One answer. steps: seconds of each step after its first token. acceptance: share of its drafts, 1 without any."""

    output: list[int]
    steps: list[float]
    tokens: int
    acceptance: float

    @property
    def tokens_per_second(self) -> float:
        """Of the steps that were timed."""
        return self.tokens / sum(self.steps)


def prompt(seed: int, length: int) -> list[int]:
    """Random ids of ordinary tokens."""
    random = Random(seed)
    return [random.randrange(FIRST_ID, LAST_ID) for _ in range(length)]


def answer(engine: Engine, ids: list[int], new_tokens: int) -> Timed:
    """Decode greedily; the first token, which ends the prefill, is not timed."""
    request = engine.submit(ids, max_new_tokens=new_tokens, stop_at_eos=False)
    while not request.output:
        engine.step()
    early, steps = len(request.output), []
    while engine.busy:
        begun = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - begun)
    counts = request.acceptance()
    proposed = sum(proposed for _, proposed in counts)
    share = sum(accepted for accepted, _ in counts) / proposed if proposed else 1.0
    return Timed(list(request.output), steps, len(request.output) - early, share)


def spec_path(name: str) -> Path:
    """A spec of specs/, or of this folder."""
    root = Path(__file__).resolve().parents[2]
    here = Path(__file__).parent / f"{name}.yaml"
    return here if here.exists() else root / "specs" / f"{name}.yaml"
