"""Ways of computing the same tokens, and what a run in one of them leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from codegen.verify.cases import Case
from codegen.verify.probe import Probe, Step
from runtime.engine import Engine
from runtime.request import Request

CANCELLED_AFTER = 3


@dataclass(frozen=True)
class Mode:
    """How an engine is made and fed.

    drafts: K; schedule: K of successive iterations, in turn; drafting: whether the drafter runs, None: if it drafts.
    together: feed waves of requests, one for each bucket; poison: overwrite all that is free.
    checkpoints: keep them, at the interval of `grid` whatever the package's own: the interval is the host's alone.
    unverified: draft, but verify nothing, so that drafts are made at every position.
    """

    name: str
    drafts: int = 0
    eager: bool = False
    schedule: tuple[int, ...] = ()
    drafting: bool | None = None
    prefill_chunk: int | None = None
    one_thread: bool = False
    together: bool = False
    poison: bool = False
    checkpoints: bool = False
    unverified: bool = False


class RunFailed(Exception):
    """An engine raised, or did not come to an end, in a mode. case: the one it was asked for; the first, if several."""

    def __init__(self, mode: Mode, case: int, error: Exception) -> None:
        self.mode, self.case, self.error = mode, case, error
        super().__init__(f"{mode.name}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Trace:
    """What a request did. steps: its begin and its decode steps.

    restored: tokens taken from a checkpoint; prefilled: tokens run through prefill, -1 where others ran along.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None
    steps: tuple[Step, ...]
    restored: int
    prefilled: int


Answers = list[tuple[int, Trace]]  # (index of the case, its trace); several per case where requests run together


class Session:
    """An engine in a mode, its probe, and which case each request is of."""

    def __init__(self, mode: Mode, engine: Engine) -> None:
        self.mode, self.engine, self.probe = mode, engine, Probe(engine)
        self.case_of: dict[int, int] = {}
        self.buckets: set[int] = set()
        if mode.unverified:
            self.probe.after.append(self._verify_nothing)

    def answer(self, cases: Sequence[Case]) -> Answers:
        """Run all cases: one after the other, or in waves. Raises RunFailed."""
        if self.mode.together:
            return self._waves(cases)
        return [(i, self.ask(case, i)) for i, case in enumerate(cases)]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the engine and its buffers."""
        self.probe.detach()

    def ask(self, case: Case, index: int) -> Trace:
        """Run one case alone. Raises RunFailed."""
        counters = self.engine.scheduler.counters
        before = counters.prefilled_tokens
        try:
            request = self._submit(case, index)
            for number in self._iterations([case]):
                if request.finished:
                    break
                if self.mode.schedule:
                    self.engine.set_drafts(self.mode.schedule[number % len(self.mode.schedule)])
                if self.mode.unverified:
                    self._verify_nothing()
                self.engine.step()
        except Exception as error:
            raise RunFailed(self.mode, index, error) from error
        return self.trace(request, counters.prefilled_tokens - before)

    def trace(self, request: Request, prefilled: int = -1) -> Trace:
        """Of a finished request."""
        steps = tuple(self.probe.steps[request.id])
        return Trace(tuple(request.output), request.finish_reason, steps, request.restored_position, prefilled)

    def _verify_nothing(self, *_: object) -> None:
        """The next step verifies no drafts: fewer than there are is always allowed."""
        self.engine.scheduler.drafted = 0

    def _submit(self, case: Case, index: int) -> Request:
        request = case.submit(self.engine)
        self.case_of[request.id] = index
        return request

    def _iterations(self, cases: Sequence[Case]) -> Iterator[int]:
        """Numbers of engine iterations, as many as the cases could need. Raises RuntimeError beyond."""
        most = sum(len(case.prompt) + case.new_tokens for case in cases) + 16
        yield from range(most)
        raise RuntimeError(f"no end after {most} iterations")

    def _waves(self, cases: Sequence[Case]) -> Answers:
        """For every bucket b, b requests at once; a wave starts while the last one of the wave before still runs."""
        requests: list[Request] = []
        waves = list(self.engine.package.plan.limits.buckets)
        waves.append(max(0, len(cases) - sum(waves)))
        try:
            cancelled = cases[0].submit(self.engine)
            for _ in self._iterations([cases[i % len(cases)] for i in range(1 + sum(waves))]):
                active = self.engine.scheduler.seats.active + self.engine.scheduler.num_waiting
                if waves and active <= 1:
                    requests += self._wave(cases, waves.pop(0), len(requests))
                if not self.engine.busy:
                    break
                if len(cancelled.output) >= CANCELLED_AFTER:
                    self.engine.cancel(cancelled)
                self.engine.step()
        except Exception as error:
            raise RunFailed(self.mode, 0, error) from error
        self.buckets = {replay.size for replay in self.probe.replays if replay.phase.value == "step"}
        return [(self.case_of[request.id], self.trace(request)) for request in requests]

    def _wave(self, cases: Sequence[Case], size: int, first: int) -> list[Request]:
        return [self._submit(cases[i % len(cases)], i % len(cases)) for i in range(first, first + size)]


def poisoner(session: Session) -> Callable[..., None]:
    """A hook that overwrites, before each replay, all that no live slot, page or checkpoint owns, and the scratch.

    Pages and checkpoint rows are overwritten when they have become free, scratch and free slots every time.
    """
    engine, scheduler = session.engine, session.engine.scheduler
    buffers, limits = engine.buffers, engine.package.plan.limits
    wiped: dict[str, set[int]] = {"kv": set(), "checkpoint": set()}
    per_slot = ("committed_len", "state_len", "num_accepted", "tokens", "out_tokens", "limit_len", "emit_position")

    def poison(*_: object) -> None:
        used = {seat.slot for seat in scheduler.seats.all()}
        slots = [slot for slot in range(limits.max_slots) if slot not in used]
        buffers.poison([buffer.name for buffer in buffers.plan.role("scratch")])
        if slots:
            buffers.poison([b.name for b in buffers.plan.role("state", "ring")], {"state": slots, "ring": slots})
            for name in per_slot:
                buffers[name][slots] = -1
        free = {"kv": scheduler.cache.pages.free_pages(), "checkpoint": scheduler.cache.free_rows()}
        for role, rows in free.items():
            fresh = [row for row in rows if row not in wiped[role]]
            wiped[role] = set(rows)
            if fresh:
                buffers.poison([buffer.name for buffer in buffers.plan.role(role)], {role: fresh})

    return poison
