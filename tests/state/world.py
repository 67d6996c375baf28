"""One run: engines that follow each other over one checkpoint directory, and everything that is checked of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from runtime.engine import Engine
from runtime.request import Progress, Request
from tests.state.allocator import check_allocator
from tests.state.before import Before
from tests.state.bits import Bits
from tests.state.contents import Contents, check_slot
from tests.state.differences import holds, same
from tests.state.model import Model
from tests.state.setup import Setup
from tests.state.subject import CONV_WIDTH, Subject
from tests.state.tally import Tally
from tests.state.texts import Text, prefix_of
from tests.state.tracks import Track
from tests.state.witness import watch
from tests.state.writer import make_patient

MEMORY = 12
PROVEN_AT_END = 2


class World:
    """The engine and what is known of it. Operations are functions of `tests.state.operations`.

    tracks: requests of the present engine; memory: texts of earlier ones; archive: prefixes in the file that was saved
    last; pins: by prefix; history: operations so far; differed: the last of them has not ended well.
    """

    def __init__(self, subject: Subject, setup: Setup, contents: Contents, tally: Tally) -> None:
        self.subject, self.setup, self.contents, self.tally = subject, setup, contents, tally
        self._folder = tempfile.TemporaryDirectory(prefix="stepforge-run-")
        self.folder = Path(self._folder.name)
        self.memory: list[Text] = []
        self.archive: set[Text] | None = None
        self.archived_drafting = setup.drafting
        self.history: list[tuple[str, dict[str, int]]] = []
        self.differed = False
        self.open(setup)

    def open(self, setup: Setup) -> None:
        """Make an engine."""
        self.setup = setup
        self.engine: Engine = setup.engine(self.subject, self.folder / "checkpoints")
        self.writer = make_patient(self.engine)
        self.model = Model(self.engine, setup, self.tally)
        self.witness = watch(self.engine, self.model, CONV_WIDTH)
        self.bits = Bits(self.engine)
        self.tracks: list[Track] = []
        self.pins: dict[Text, int] = {}
        self.totals_known = True
        if self.subject.plant is not None:
            self.subject.plant(self.engine)

    # Requests

    def add(self, track: Track) -> None:
        """A request was made."""
        self.tracks.append(track)
        self.model.tracks[track.request.id] = track
        self.tally.requests += 1

    def remember(self, text: Text) -> None:
        """A text that later prompts may begin with."""
        self.memory = [*self.memory, text][-MEMORY:]

    def having(self, wanted: Callable[[Request], bool]) -> list[Track]:
        """The tracks of requests like that."""
        return [track for track in self.tracks if wanted(track.request)]

    def running(self) -> list[Track]:
        """Those that have a slot."""
        return self.having(lambda request: request.progress in (Progress.PREFILL, Progress.DECODE))

    def unfinished(self) -> list[Track]:
        """Those that wait or run."""
        return self.having(lambda request: not request.finished)

    # Operations

    def apply(self, name: str, operate: Callable[..., None], **arguments: int) -> None:
        """Run an operation, and check everything after it."""
        self.history.append((name, arguments))
        self.tally.operations[name] += 1
        self.before = self.new_before()
        self.differed = True
        operate(self, **arguments)
        self.check()
        self.differed = False

    def new_before(self) -> Before:
        """What there is now, for the checks after the next operation."""
        self.model.fresh()
        return Before(self.engine, self.model)

    def between(self) -> None:
        """Check what is published between two steps of one operation."""
        self.before.check_published()
        self.before.count_events()
        self.before = self.new_before()

    def step(self) -> None:
        """One step of the engine, and what it handed out."""
        free, waiting = self._free_and_waiting()
        overdue = [track for track in self.unfinished() if track.expired]
        try:
            emitted = self.engine.step()
        except BaseException:
            self.model.settle()
            self._expire([track for track in overdue if track.request.finish_reason == "deadline"])
            raise
        self._expire(overdue)
        holds(self.model.admissions >= min(free, waiting), f"{free} slots were free, and {waiting} requests waited")
        self.model.admissions = 0
        for request, tokens in emitted:
            self.model.tracks[request.id].handed_out(tokens)
        self.model.seated()
        budget = self.setup.prefill_budget
        holds(budget is None or self.model.chunked <= budget, f"{self.model.chunked} tokens prefilled in a step")
        self.model.chunked = 0

    def _free_and_waiting(self) -> tuple[int, int]:
        """Slots that the next step must fill, with requests that are there for them."""
        scheduler, late = self.engine.scheduler, {track.request for track in self.unfinished() if track.expired}
        self.model.admissions = 0
        return len(scheduler.seats.free), sum(request not in late for request in scheduler.queue)

    def _expire(self, tracks: list[Track]) -> None:
        for track in tracks:
            track.ended = "deadline"
            self.tally.hit("deadline passed")

    def interrupted(self) -> None:
        """A KeyboardInterrupt left the engine: all that had slots has ended."""
        self.engine.scheduler._recover()
        self.model.settle()
        self.totals_known = False
        same("slots in use after an interruption", self.engine.scheduler.seats.active, 0)
        for track in self.tracks:
            if len(track.request.tokens) < len(track.seen):
                track.back_to(len(track.request.tokens), track.request.seed)
            if track.request.finish_reason == "error" and track.ended is None:
                track.ended = "error"
            if track.ended == "error" or len(track.request.tokens) > len(track.seen):
                self.catch_up(track)
        self.model.interrupted()

    def note_pins(self) -> None:
        """Believe the engine about pins: it was interrupted while some were made."""
        kept = self.engine.scheduler.cache.all()
        self.pins = {prefix_of(checkpoint): checkpoint.pins for checkpoint in kept if checkpoint.pins}

    def catch_up(self, track: Track) -> None:
        """What a request got in a step that did not end was handed out to nobody."""
        request = track.request
        same("tokens before an interruption", request.tokens[: len(track.seen)], track.seen)
        track.handed_out(request.tokens[len(track.seen) :])
        track.restored, track.recomputed = request.restored_position, request.recomputed_tokens
        track.prefilled, track.preempted = request.prefilled_tokens, request.preemptions
        if len(request.logprobs) != len(track.seen) - track.scored_from:
            track.scored = False

    # Checks

    def check(self) -> None:
        """All oracles that hold between two operations."""
        self.model.seated()
        for track in self.tracks:
            self.tally.tokens += track.check(self.subject.cold)
        check_allocator(self.engine)
        self.before.check_published()
        self.before.count_events()
        self._check_pins()
        self.contents.check(self.engine, self.bits)
        self._check_lengths()
        same("files refused", self.engine.scheduler.tiers.refused, 0)

    def _check_pins(self) -> None:
        pinned = {prefix_of(c): c.pins for c in self.engine.scheduler.cache.all() if c.pins}
        same("pins", pinned, self.pins)
        for checkpoint in self.engine.scheduler.cache.all():
            on_device = checkpoint.index is not None
            holds(on_device or not checkpoint.pins, f"pinned at {checkpoint.position}, and not on the device")

    def _check_lengths(self) -> None:
        for seat in self.engine.scheduler.seats.all():
            found = self.witness.views["committed_len"][seat.slot], self.witness.views["state_len"][seat.slot]
            same(f"lengths of slot {seat.slot}", found, (seat.committed_len, seat.state_len))
            same(f"processed of slot {seat.slot}", self.model.seats[seat.slot].committed, seat.committed_len)

    def inspect(self, pick: int) -> None:
        """Compare a slot in use with a cold engine, and what is kept of its text."""
        seats = self.engine.scheduler.seats.all()
        if seats:
            seat, cold = seats[pick % len(seats)], self.subject.cold
            check_slot(self.engine, self.bits, cold, seat, self.model.tracks[seat.request.id].whole(cold))
            self.tally.hit("slots compared with cold ones")
        self.prove(pick, 1)

    def prove(self, first: int, most: int) -> None:
        """Compare what is kept on the way of a few texts with cold states."""
        deepest = sorted(self.model.published(), key=lambda text: (-len(text), text))
        for number in range(min(most, len(deepest))):
            text = deepest[(first + number) % len(deepest)]
            for length in range(len(text), 0, -1):
                proven = self.contents.prove(self.subject.cold, self.setup.drafting, text[:length])
                self.tally.hit("checkpoints compared with cold ones", proven)

    # The end

    def finish(self) -> None:
        """Run until nothing is left; then every answer must be complete, and everything can be given back."""
        self.before = self.new_before()
        while self.engine.busy:
            self.step()
            self.between()
        self.check()
        self.prove(0, PROVEN_AT_END)
        self._check_totals()
        scheduler = self.engine.scheduler
        scheduler.tiers.flush()
        for checkpoint in scheduler.cache.all():
            checkpoint.pins = 0
        self.engine.cache.clear()
        same("kept after clearing all", scheduler.cache.all(), [])
        same("pages in use after clearing all", scheduler.cache.pages.in_use, 0)
        check_allocator(self.engine)
        self.tally.runs += 1

    def _check_totals(self) -> None:
        if not self.totals_known:
            return
        stats = self.engine.stats()
        for name, found, expected in (
            ("prefilled", stats.prefilled_tokens, sum(track.prefilled for track in self.tracks)),
            ("emitted", stats.output_tokens, sum(track.emitted for track in self.tracks)),
            ("requests", stats.requests, len(self.tracks)),
        ):
            same(f"{name} over all requests", found, expected)

    def close(self) -> None:
        """Give up the run."""
        self._folder.cleanup()
