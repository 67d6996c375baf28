"""Where two ways of computing the same thing part: the first launch, buffer, layer and position.

Two searches: `GraphAndEager` runs every replay twice from one snapshot of all buffers; `Contents` lays what a slot has
committed beside a cold run, position by position. See also codegen.verify.beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from codegen.verify.content import Content, describe, first_difference, live_content, parts, same_bits
from codegen.verify.isolation import BY_BATCH, restore, snapshot
from codegen.verify.launches import Call, LaunchTap, call_section, planned
from codegen.verify.modes import Mode, RunFailed, Session
from codegen.verify.outcome import Suspect
from codegen.verify.probe import Replay
from codegen.verify.report import Finding
from codegen.verify.states import extended
from codegen.verify.subject import COLD, Subject
from runtime.executor import Phase
from runtime.graphs import Graph, record

Buffered = dict[str, Tensor]


class Found(Exception):
    """Ends a run as soon as a difference is found."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


def locate(subject: Subject, name: str, suspect: Suspect) -> list[Finding]:
    """What a wrong answer comes from: a launch, if a graph does not do what its launches do, else a buffer."""
    found: list[Finding] = []
    if suspect.mode == COLD:
        return found
    if not suspect.mode.eager:
        found += _watch(subject, suspect, GraphAndEager(subject, name, suspect.mode))
    if not found:
        found += _watch(subject, suspect, Contents(subject, name, suspect))
    return found


def _watch(subject: Subject, suspect: Suspect, search: GraphAndEager | Contents) -> list[Finding]:
    """Run the suspect again under a search, until it finds something or the run ends, by itself or in an error."""
    with subject.session(suspect.mode) as session:
        search.attach(session)
        try:
            session.answer(subject.cases) if suspect.mode.together else _run(session, subject, suspect, search.name)
        except RunFailed as failure:
            if isinstance(failure.error, Found):
                return [failure.error.finding]
    return []


def _run(session: Session, subject: Subject, suspect: Suspect, name: str) -> None:
    """All cases up to the suspect, which may be why it failed. Of one that was resumed, also what it resumed from."""
    asked = 1 + ("resumed", "extended").index(name) if name in ("resumed", "extended") else 0
    for i, case in enumerate(subject.cases[: suspect.case + 1]):
        for again in [case, case, extended(case, subject.cold[i].trace)][: 1 + asked]:
            session.ask(again, i)


class GraphAndEager:
    """From one snapshot, each graph and the launches it was recorded from: all buffers must end up the same."""

    def __init__(self, subject: Subject, name: str, mode: Mode) -> None:
        self.subject, self.name, self.mode = subject, name, mode
        self.protocol_at_capture: dict[int, Buffered] = {}

    def attach(self, session: Session) -> None:
        """Take over the replays of a session."""
        self.session, self.buffers = session, session.engine.buffers
        self.package = session.engine.package
        self.drafter = session.engine.scheduler.executor.drafter
        session.probe.around = self.compare

    def compare(self, replay: Replay, graph: Graph, run: Callable[[], None]) -> None:
        """Run the graph, then the launches, from one snapshot. Raises Found."""
        self.buffers.host.upload(everything=True)
        before = snapshot(self.buffers)
        self.protocol_at_capture.setdefault(id(graph), self._protocol(before))
        run()
        replayed = snapshot(self.buffers)
        restore(self.buffers, before)
        self._eager(replay)
        eager = snapshot(self.buffers)
        self.buffers.host.download()
        differing = [name for name in eager if not same_bits(eager[name], replayed[name])]
        if differing:
            raise Found(self._explain(replay, graph, before, replayed, eager, differing))

    def _protocol(self, kept: Buffered) -> Buffered:
        return {buffer.name: kept[buffer.name] for buffer in self.buffers.plan.role("protocol")}

    def _eager(self, replay: Replay, limit: int | None = None) -> LaunchTap:
        with self.package.compiling(), LaunchTap(self.package, limit=limit) as tap:
            call_section(self.package, self.buffers, self.drafter, replay)
        return tap

    def _prefix(self, replay: Replay, before: Buffered, captured: Buffered, limit: int) -> tuple[Buffered, Buffered]:
        """Buffers after the first `limit` launches: from a graph recorded as it was at first use, and eagerly."""
        restore(self.buffers, captured)
        with LaunchTap(self.package, limit=limit):
            graph = record(
                lambda: call_section(self.package, self.buffers, self.drafter, replay),
                self.package.compiling,
                self.package.device,
                eager=False,
            )
        restore(self.buffers, before)
        graph.replay()
        replayed = snapshot(self.buffers)
        restore(self.buffers, before)
        self._eager(replay, limit)
        return replayed, snapshot(self.buffers)

    def _explain(
        self, replay: Replay, graph: Graph, before: Buffered, replayed: Buffered, eager: Buffered, differing: list[str]
    ) -> Finding:
        launches = planned(self.buffers.plan, self.drafter, replay)
        captured = self.protocol_at_capture[id(graph)]

        def parts_by(limit: int) -> list[str]:
            """Buffers that differ after so many launches."""
            a, b = self._prefix(replay, before, captured, limit)
            return [name for name in b if not same_bits(a[name], b[name])]

        low, high = 0, len(launches)
        if not parts_by(high):
            return self._whole(replay, graph, before, replayed, eager, differing)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if parts_by(middle) else (middle, high)
        a, b = self._prefix(replay, before, captured, high)
        launch = launches[high - 1][0]
        buffer = next(name for name in [*launch.args.values(), *b] if name in b and not same_bits(a[name], b[name]))
        moved = self._moved(graph, high - 1)
        stale = "".join(f"; its argument {name} was captured at another address" for name in moved)
        text = f"{replay}: launch {high} of {len(launches)}, {launch.kernel}: {describe(b[buffer], a[buffer])}{stale}"
        return self._finding(replay, launch.layer, buffer, text)

    def _moved(self, graph: Graph, index: int) -> list[str]:
        """Tensor arguments of a recorded launch that lie in no buffer of the plan; empty where that cannot be seen."""
        recorded: Any = getattr(getattr(graph, "recording", None), "launches", [])
        known = {self.buffers[name].data_ptr() for name in self.buffers.plan.buffers}
        return [name for name, at in recorded[index].tensors if at not in known] if index < len(recorded) else []

    def _whole(
        self, replay: Replay, graph: Graph, before: Buffered, replayed: Buffered, eager: Buffered, differing: list[str]
    ) -> Finding:
        """Only the graph in use differs, not one recorded now: of the buffers that do, the one that is complete first.

        What lasts beyond a step comes before what only lays out its rows.
        """
        restore(self.buffers, before)
        writers, launches = self._last_writers(replay), planned(self.buffers.plan, self.drafter, replay)
        roles = {name: self.buffers.plan.buffers[name].role for name in differing}
        lasting = [name for name in differing if roles[name] != "scratch" and name not in BY_BATCH] or differing
        buffer = min(lasting, key=lambda name: writers.get(name, len(launches)))
        layer = launches[writers[buffer]][0].layer if writers.get(buffer, len(launches)) < len(launches) else ""
        text = f"{replay}: {describe(eager[buffer], replayed[buffer])}; a graph recorded now does not differ"
        if graph.num_launches not in (0, len(launches)):
            text += f", this one has {graph.num_launches} launches instead of {len(launches)}"
        return self._finding(replay, layer, buffer, text)

    def _last_writers(self, replay: Replay) -> dict[str, int]:
        """The index of the last launch that changes each buffer."""
        writers: dict[str, int] = {}
        names = {self.buffers[name].data_ptr(): name for name in self.buffers.plan.buffers}

        def watch(index: int, call: Call, launch: Callable[[], None]) -> None:
            tensors = [value for value in call.args.values() if isinstance(value, Tensor)]
            mine = {names[t.data_ptr()]: t for t in tensors if t.data_ptr() in names}
            mine = {n: t for n, t in mine.items() if self.buffers.plan.buffers[n].role not in ("weight", "table")}
            kept = {name: tensor.clone() for name, tensor in mine.items()}
            launch()
            writers.update({name: index for name, tensor in mine.items() if not same_bits(kept[name], tensor)})

        with self.package.compiling(), LaunchTap(self.package) as tap:
            tap.around = watch
            call_section(self.package, self.buffers, self.drafter, replay)
        return writers

    def _finding(self, replay: Replay, layer: str, buffer: str, text: str) -> Finding:
        position = max(replay.positions, default=-1)
        return Finding(self.name, ("eager", self.mode.name), position, layer, buffer, text)


class Contents:
    """What a slot has committed beside what a cold run holds at the same position, in execution order."""

    def __init__(self, subject: Subject, name: str, suspect: Suspect) -> None:
        self.subject, self.name, self.suspect = subject, name, suspect
        self.cold = subject.run_cold(suspect.case, None).contents

    def attach(self, session: Session) -> None:
        """Look after every replay of a session."""
        self.session, self.buffers = session, session.engine.buffers
        self.parts = parts(self.buffers.plan, session.engine.scheduler.executor.drafting)
        self.columns = [self.subject.parts.index(part) for part in self.parts]
        session.probe.after.append(self.compare)

    def compare(self, replay: Replay) -> None:
        """States stand at the position a step began at, and at the end of a chunk. Raises Found."""
        for seat, before in zip(self.session.probe.seats(replay), replay.positions, strict=False):
            if self.session.case_of.get(seat.request.id) != self.suspect.case:
                continue
            position = int(self.buffers["committed_len"][seat.slot]) if replay.phase is Phase.PREFILL else before
            expected = self.cold.get(position)
            if expected is None or replay.phase not in (Phase.PREFILL, Phase.STEP):
                continue
            found = live_content(self.buffers, self.parts, seat.slot, position)
            wanted = Content(position, tuple(expected.values[column] for column in self.columns))
            difference = first_difference(self.parts, wanted, found)
            if difference is not None:
                part, text = difference.part, f"{self.subject.cases[self.suspect.case]}: {difference.detail}"
                modes = ("cold", self.suspect.mode.name)
                raise Found(Finding(self.name, modes, position, part.layer, part.buffer, text))
