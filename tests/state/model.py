"""An independent model of what an engine knows, keeps and resumes: fed by the operations that the device is given.

It has no pool and evicts nothing. What it says must be published was published at least once; whether it still is, is
for those to say who look at the counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dsl.reference.protocol.policy import token_hash
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.request import Request
from tests.state.differences import holds, same
from tests.state.setup import Setup
from tests.state.tally import Tally
from tests.state.texts import Text, Texts, prefix_of
from tests.state.tracks import Track


@dataclass(eq=False)
class Seated:
    """A request in a slot. text: to be processed before it decodes; tokens: all it has; committed: processed.

    settled: retained positions up to here are written or were passed over, None before it decodes. expected: positions
    that it may be restored from, the best first; certain: it must be the best. known: of its text when it was seated.
    """

    track: Track
    text: Text
    tokens: list[int]
    known: int
    expected: list[int]
    certain: bool
    preemptions: int
    committed: int = 0
    settled: int | None = None
    begun: bool = False


@dataclass
class Model:
    """Of one engine. due: prefixes that have to be published by what ran since `fresh`; tracks: by request id."""

    engine: Engine
    setup: Setup
    tally: Tally
    tracks: dict[int, Track] = field(default_factory=dict)
    texts: Texts = field(default_factory=Texts)
    seats: dict[int, Seated] = field(default_factory=dict)
    due: set[Text] = field(default_factory=set)
    chunked: int = 0
    admissions: int = 0
    victims: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = self.engine.package.plan.limits
        self.cache, self.tiers = self.engine.scheduler.cache, self.engine.scheduler.tiers
        self.enabled = self.setup.rows > 0
        self._observe_adoption()

    def _observe_adoption(self) -> None:
        adopt = self.tiers.adopt

        def observed(image: object, *reasons: object) -> Checkpoint | None:
            try:
                placed = adopt(image, *reasons)
            except BaseException:
                self.due.add(image.tokens)
                raise
            if placed is not None:
                self.texts.learn(image.tokens)
                self.due.add(image.tokens)
            return placed

        self.tiers.adopt = observed

    def fresh(self) -> None:
        """A new operation begins."""
        self.due, self.chunked, self.victims = set(), 0, []

    def learn(self, tokens: Sequence[int]) -> None:
        """Text that was processed."""
        if self.enabled:
            self.texts.learn(tokens)

    # Retention

    def retained(self, track: Track, start: int, end: int, more: Iterable[int] = ()) -> list[int]:
        """Positions in (start, end] that have to be kept. Of more than the pool has rows for, the last ones."""
        step = self.limits.page_size if self.setup.interval is None else self.setup.interval
        points = {track.prompt_len, *track.asked, *track.junctions, *more}
        found = [p for p in range(start + 1, end + 1) if p in points or (step and p % step == 0)]
        return found[-self.setup.rows :] if self.enabled else []

    def _keep(self, tokens: Sequence[int], positions: Iterable[int]) -> None:
        self.due |= {tuple(tokens[:position]) for position in positions}

    # Admission

    def admit(self, slot: int, request: Request) -> None:
        """A request was given a slot; nothing is restored yet."""
        self.settle()
        self.admissions += 1
        track, text = self.tracks[request.id], tuple(request.tokens[: request.target_len])
        waiting = [other.priority for other in self.engine.scheduler.queue]
        holds(all(priority <= request.priority for priority in waiting), f"request {request.id} goes before its turn")
        self._check_victims(request)
        holds(slot not in self.seats, f"slot {slot} is given to request {request.id}, and still in use")
        expected, certain = self._past(request, text)
        self.seats[slot] = Seated(
            track, text, list(request.tokens), self.texts.known(text), expected, certain, request.preemptions
        )

    def _check_victims(self, request: Request) -> None:
        """Who had to go for a request was below it, and nobody that stays is below those who went."""
        for victim in self.victims:
            lowest = min((s.track.request.priority for s in self.seats.values()), default=victim.priority)
            fair = victim.priority < request.priority and victim.priority <= lowest
            holds(fair, f"request {victim.id} had to make room for {request.id}")
        self.victims = []

    def _past(self, request: Request, text: Text) -> tuple[list[int], bool]:
        """Positions to resume from, the best first, and whether the best one cannot fail."""
        held = request.held
        there = [c for c in self.cache.all() if c.published and prefix_of(c) == text[: c.position]]
        on_device = {c.position for c in there if c.index is not None and c.position <= len(text)}
        positions = {c.position for c in there if c.position <= len(text)} | self._in_files(text)
        positions, on_device = (positions, on_device) if self.enabled else (set(), set())
        if held is not None and (held.index is not None or held.copy is not None):
            rest = sorted(positions - {held.position}, reverse=True)
            return [held.position, *rest, 0], held.index is not None
        best = sorted(positions, reverse=True)
        return [*best, 0], not best or best[0] in on_device

    def _in_files(self, text: Text) -> set[int]:
        if self.tiers.directory is None:
            return set()
        keys = set(self.tiers.directory.keys())
        return {position for position in range(1, len(text) + 1) if (position, token_hash(text[:position])) in keys}

    def restore(self, slot: int, checkpoint: Checkpoint) -> None:
        """The slot takes a checkpoint."""
        seated = self.seats[slot]
        same(f"tokens of what slot {slot} is restored from", prefix_of(checkpoint),
             seated.text[: checkpoint.position])  # fmt: skip
        seated.committed = checkpoint.position

    def _begin(self, seated: Seated) -> None:
        """Its past is settled: this is where it goes on from."""
        if seated.begun:
            return
        seated.begun, track, at = True, seated.track, seated.committed
        allowed = seated.expected[:1] if seated.certain else seated.expected
        holds(at in allowed, f"request {track.request.id} resumes from {at}, {allowed[0]} expected")
        lost = max(0, seated.known - at)
        track.recomputed += lost
        track.restored = at
        self.tally.hit("recomputed" if lost else "nothing recomputed")
        if at:
            self._count_restored(seated, at)

    def _count_restored(self, seated: Seated, at: int) -> None:
        track = seated.track
        self.tally.hit("restored")
        if at == track.prompt_len == len(seated.text):
            self.tally.hit("identical prompt, nothing prefilled")
        elif track.preempted and at == len(seated.text):
            self.tally.hit("resumed after preemption, nothing prefilled")
        if not seated.certain:
            self.tally.hit("restored from another tier" if at == seated.expected[0] else "other tier had no room")

    # Prefill

    def find_junction(self, slot: int) -> None:
        """A chunk is about to be laid out: where the prompt leaves known text, if that is far from what is kept."""
        self.settle()
        track = self.seats[slot].track
        prompt = tuple(track.seen[: track.prompt_len])
        junction = self.texts.junction(prompt) if self.enabled else None
        if junction is None or junction in (*track.asked, *track.junctions):
            return
        step = self.limits.page_size if self.setup.interval is None else self.setup.interval
        grid = junction - junction % step if step else 0
        kept = [len(text) for text in self.published() if len(text) <= junction and prompt[: len(text)] == text]
        if 4 * (junction - max(grid, *kept, 0)) >= self.limits.page_size:
            track.junctions.add(junction)
            self.tally.hit("junction")
        else:
            self.tally.hit("junction too near")

    def prefill(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """A chunk is about to run."""
        self.settle()
        seated = self.seats[slot]
        self._begin(seated)
        track, end = seated.track, start + len(tokens)
        same(f"start of a chunk of slot {slot}", start, seated.committed)
        same(f"chunk of slot {slot}", tuple(tokens), seated.text[start:end])
        holds(0 < len(tokens) <= self.setup.prefill_chunk, f"a chunk of {len(tokens)} tokens")
        self.chunked += len(tokens)
        self._keep(seated.text, self.retained(track, start, end))

    def laid_out(self, slot: int, end: int) -> None:
        """A chunk that goes to `end` will run with the next launch: those laid out after it know its text."""
        self.learn(self.seats[slot].text[:end])

    def prefilled(self, slot: int, count: int) -> None:
        """It has run."""
        seated = self.seats[slot]
        seated.committed += count
        seated.track.prefilled += count

    def begin(self, slot: int, token: int) -> None:
        """A slot has sampled its first token, or again the one that it had."""
        self.settle()
        seated = self.seats[slot]
        self._begin(seated)
        same(f"processed before slot {slot} begins", seated.committed, len(seated.text))
        seated.tokens = [*seated.text, token]
        seated.settled = seated.committed

    # Decode

    def step(self, slots: Sequence[int]) -> None:
        """A step over these slots is about to run."""
        self.settle()
        for slot in slots:
            self.flush(self.seats[slot])

    def stepped(self, accepted: Mapping[int, Sequence[int]], emitted: Mapping[int, int]) -> None:
        """It has run. accepted: tokens by slot; emitted: positions of the checkpoints that it wrote, by slot."""
        for slot, position in emitted.items():
            self.learn(self.seats[slot].tokens[:position])
        for slot, tokens in accepted.items():
            seated = self.seats[slot]
            seated.committed += len(tokens)
            seated.tokens += tokens

    def saved(self, slot: int, position: int) -> None:
        """A checkpoint was written between steps."""
        self.settle()
        self.learn(self.seats[slot].tokens[:position])

    def flush(self, seated: Seated, answer_end: bool = False) -> None:
        """All that is due of a slot is written, the end of its answer too."""
        if seated.settled is not None:
            start, end = seated.settled, seated.committed
            start = min(start, end - 1) if answer_end else start
            more = [end] if answer_end else []
            self._keep(seated.tokens, self.retained(seated.track, start, end, more))
            seated.settled = end

    # Leaving

    def settle(self) -> None:
        """Notice who has left since the last event."""
        there = {seat.slot: seat.request for seat in self.engine.scheduler.seats.all()}
        for slot, seated in list(self.seats.items()):
            if there.get(slot) is not seated.track.request or self._moved(seated):
                del self.seats[slot]
                self._left(seated)

    def _moved(self, seated: Seated) -> bool:
        return seated.track.request.preemptions != seated.preemptions

    def _left(self, seated: Seated) -> None:
        track = seated.track
        request = track.request
        if request.finish_reason in ("stop", "limit"):
            self.flush(seated, answer_end=seated.committed > track.prompt_len)
            self.tally.hit(f"finished: {request.finish_reason}")
        elif request.finish_reason == "error":
            self.flush(seated, answer_end=True)  # any of it may have been written before the interruption
        elif not request.finished:
            self.flush(seated)
        if self._moved(seated):
            self.victims.append(request)
            track.preempted += 1
            self.tally.hit("preempted mid prefill" if seated.settled is None else "preempted mid decode")
        self.learn(seated.tokens[: seated.committed])

    def seated(self) -> None:
        """Between two operations: whoever has a slot knows where it goes on from."""
        self.settle()
        for seated in self.seats.values():
            self._begin(seated)

    def of(self, request: Request) -> Seated | None:
        """The seat of a request."""
        return next((seated for seated in self.seats.values() if seated.track.request is request), None)

    def interrupted(self) -> None:
        """The engine has dropped all seats, and forgot the text that no checkpoint has."""
        self.seats = {}
        self.texts = Texts(prefix_of(c) for c in self.cache.all())

    def published(self) -> set[Text]:
        """What others may resume from now, in whatever tier."""
        return {prefix_of(c) for c in self.cache.all() if c.published}
