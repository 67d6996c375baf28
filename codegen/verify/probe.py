"""Watches an engine: every replay, what each request verified, accepted and drafted. The engine does not know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.engine import Engine
from runtime.executor import Phase, score_size
from runtime.graphs import Graph
from runtime.seats import Seat

Run = Callable[[], None]
OPERATIONS = ("prefill", "begin", "save", "score", "restore")


@dataclass(frozen=True)
class Replay:
    """One replay. size: rows of a prefill or score, else the bucket; slots: seated; positions: their committed_len."""

    phase: Phase
    size: int
    verify_drafts: int
    next_drafts: int
    slots: tuple[int, ...]
    positions: tuple[int, ...]

    def __str__(self) -> str:
        if self.phase is Phase.STEP:
            return f"step of bucket {self.size}, {self.verify_drafts} drafts verified, {self.next_drafts} made"
        if self.phase is Phase.PREFILL:
            return f"prefill of {self.size} rows at {', '.join(map(str, self.positions))}"
        return str(self.phase.value)


@dataclass(frozen=True)
class Step:
    """What one begin or step did to a request: at which committed_len, drafts verified (-1: begin), accepted, made."""

    position: int
    verified: int
    accepted: int
    drafts: tuple[int, ...]

    @property
    def after(self) -> int:
        """committed_len after it, which the drafts follow: a begin commits nothing."""
        return self.position + (self.accepted if self.verified >= 0 else 0)


class Probe:
    """Attached to an engine until detached. unwatched: the executor's own replay.

    before, after: called around each replay. around: may replace it; gets the replay, its graph and what would run it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scheduler, self.executor = engine.scheduler, engine.scheduler.executor
        self.replays: list[Replay] = []
        self.steps: dict[int, list[Step]] = defaultdict(list)
        self.before: list[Callable[[Replay], None]] = []
        self.after: list[Callable[[Replay], None]] = []
        self.around: Callable[[Replay, Graph, Run], None] = lambda replay, graph, run: run()
        self._due: Replay | None = None
        self.unwatched: Callable[[Graph], None] = self.executor.replay
        wrapped = {name: self._announced(name) for name in OPERATIONS}
        vars(self.executor).update(replay=self._watched, **wrapped)

    def detach(self) -> None:
        """Leave the engine as it was."""
        for name in ("replay", *OPERATIONS):
            vars(self.executor).pop(name)

    def seats(self, replay: Replay) -> list[Seat]:
        """The seats of a replay, in its order."""
        by_slot = {seat.slot: seat for seat in self.scheduler.seats.all()}
        return [by_slot[slot] for slot in replay.slots if slot in by_slot]

    def _announced(self, name: str) -> Callable[..., Any]:
        """An operation of the executor that says which replay it is about to make."""
        operation: Callable[..., Any] = getattr(self.executor, name)
        phase, limits = Phase(name), self.executor.limits

        def run(first: Any, *args: Any) -> Any:
            size, drafts = 1, args[0] if phase is Phase.BEGIN else 0
            slots = (first,)
            if phase is Phase.PREFILL:
                size = limits.prefill_size(sum(len(chunk.tokens) for chunk in first))
                slots = tuple(chunk.slot for chunk in first)
            elif phase is Phase.BEGIN:
                size, slots = limits.bucket(len(first)), tuple(first)
            elif phase is Phase.SCORE:
                size = score_size(len(args[0]))
            lengths = self.executor.views["committed_len"]
            self._due = Replay(phase, size, 0, drafts, slots, tuple(lengths[slot] for slot in slots))
            try:
                return operation(first, *args)
            finally:
                self._due = None

        return run

    def _step(self) -> Replay:
        slots = tuple(seat.slot for seat in self.scheduler.seats.decoding)
        positions = tuple(self.executor.views["committed_len"][slot] for slot in slots)
        bucket = self.executor.limits.bucket(len(slots))
        return Replay(Phase.STEP, bucket, self.scheduler.drafted, self.scheduler.drafts, slots, positions)

    def _watched(self, graph: Graph) -> None:
        replay, self._due = self._due or self._step(), None
        self.replays.append(replay)
        for hook in self.before:
            hook(replay)
        self.around(replay, graph, lambda: self.unwatched(graph))
        if replay.phase in (Phase.BEGIN, Phase.STEP):
            self._record(replay)
        for hook in self.after:
            hook(replay)

    def _record(self, replay: Replay) -> None:
        verified = replay.verify_drafts if replay.phase is Phase.STEP else -1
        tokens, accepted = self.engine.buffers["tokens"], self.engine.buffers["num_accepted"]
        for seat, position in zip(self.seats(replay), replay.positions, strict=False):
            drafts = tuple(tokens[seat.slot, 1 : 1 + replay.next_drafts].tolist())
            step = Step(position, verified, int(accepted[seat.slot]), drafts)
            self.steps[seat.request.id].append(step)
