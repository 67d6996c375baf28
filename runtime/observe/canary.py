"""In production, now and then a decode step is run twice, from its graph and launch by launch: for equal bits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from runtime.errors import BadOption
from runtime.executor import Executor, GraphKey
from runtime.graphs import EagerGraph, Graph
from runtime.observe.culprit import Culprit, Difference, StepCall
from runtime.observe.footprint import Footprint, differing

NEVER = sys.maxsize


class CanaryDiffered(RuntimeWarning):
    """A step graph did not do what its launches do; the engine goes on without graphs."""


@dataclass(frozen=True)
class CanaryReport:
    """A step whose graph and launches differ.

    step: its number, from 0; key: of its graph; agreed: the latest step before it that was checked and equal, or None.
    Answers and checkpoints since then may be wrong, also those of requests that still run: a broken launch may have
    written anywhere.
    """

    step: int
    key: GraphKey
    agreed: int | None
    difference: Difference

    def __str__(self) -> str:
        since = "the start" if self.agreed is None else f"step {self.agreed}"
        return (
            f"the graph of step {self.step} (bucket, drafts verified, made: {self.key[1:]}) does not do what its "
            f"launches do: {self.difference}. The launches' result was kept and no graphs are used from here on. "
            f"Answers and checkpoints since {since} may be wrong: restart the engine, which also records new graphs; "
            "if this happens again, run `python -m codegen verify` on its package"
        )


class Canary:
    """Checks decode steps of one executor. rate: share of the steps, 0 (none) to 1 (all); seed: which ones.

    Exactly one step of each 1 / rate is checked; which one is a function of seed and step number alone. A check takes
    the time of a step without graph, and copies of what the step may change. steps: decode steps so far; checked: of
    these, run twice; reports: those that differed. Raises BadOption.
    """

    def __init__(self, executor: Executor, rate: float, seed: int = 0) -> None:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise BadOption(option="canary", value=rate, allowed="a number from 0 (never) to 1 (every step)")
        self.executor, self.rate, self.seed = executor, rate, seed
        self.steps = self.checked = 0
        self.reports: list[CanaryReport] = []
        self._agreed: int | None = None
        self._window = 0
        self._due = self._next_due() if rate else NEVER

    @property
    def agreed(self) -> bool | None:
        """Whether all checks so far found the same bits; None before the first."""
        return not self.reports if self.checked else None

    def replay(self, graph: Graph, key: GraphKey, slots: Sequence[int]) -> bool:
        """`executor.replay` of a step of `slots`, which may check it. True if it did: it took longer than a step.

        After a difference the executor's graphs are gone: look them up again. Warns CanaryDiffered, last of all.
        """
        step = self.steps
        self.steps += 1
        if step < self._due:
            self.executor.replay(graph)
            return False
        self._due = self._next_due()
        if isinstance(graph, EagerGraph):
            self.executor.replay(graph)
            return False
        twice = _Twice(self.executor, graph, key, slots)
        self.executor.replay(twice)
        self.checked += 1
        if twice.difference is None:
            self._agreed = step
        else:
            self._differed(CanaryReport(step, key, self._agreed, twice.difference))
        return True

    def go_eager(self) -> None:
        """No graphs from here on, and none that exist."""
        self.executor.eager = True
        self.executor.graphs.clear()

    def _differed(self, report: CanaryReport) -> None:
        self.reports.append(report)
        self.go_eager()
        warnings.warn(CanaryDiffered(str(report)), stacklevel=3)

    def _next_due(self) -> int:
        """A step of the next window; windows are 1 / rate steps long, in whole steps."""
        start, end = (int(min((self._window + i) / self.rate, NEVER)) for i in (0, 1))
        digest = blake2b(f"{self.seed} {self._window}".encode(), digest_size=8).digest()
        self._window += 1
        return start + int.from_bytes(digest, "little") % max(1, end - start)


class _Twice:
    """A step as a graph that runs both ways and keeps what the launches leave. difference: what it found, or None."""

    num_launches = 0

    def __init__(self, executor: Executor, graph: Graph, key: GraphKey, slots: Sequence[int]) -> None:
        self._graph, self._slots = graph, slots
        self._step = StepCall(executor.package, executor.buffers, executor.drafter, *key[1:])
        self.difference: Difference | None = None

    def replay(self) -> None:
        step, package = self._step, self._step.package
        footprint = Footprint.of_step(step.buffers, self._slots, step.verify_drafts, step.next_drafts)
        before = footprint.take()
        self._graph.replay()
        replayed = footprint.take()
        footprint.put(before)
        EagerGraph(step, package.compiling).replay()
        eager = footprint.take()
        if differing(replayed, eager):
            self.difference = Culprit(step, footprint, before).find(self._graph, replayed, eager)
            footprint.put(eager)
