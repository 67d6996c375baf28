"""Random traces of an engine's life, compared after every operation with the sequential truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from random import Random

from dsl.reference.protocol import policy
from dsl.reference.protocol.buffers import Checkpoint, Phase, ProtocolShape, SeatResult, SlotSnapshot
from dsl.reference.protocol.machine import PAD_SLOT_ID, ProtocolMachine
from dsl.reference.protocol.model import HashModel, Model, Sequential

MachineFactory = Callable[[ProtocolShape, Model], ProtocolMachine]


class DivergenceError(AssertionError):
    """The machine and the sequential truth disagree."""


@dataclass
class Stats:
    """What the traces covered. hits: requests whose prompt was found whole, so that nothing was recomputed."""

    traces: int = 0
    requests: int = 0
    steps: int = 0
    seats: int = 0
    tokens: int = 0
    states: int = 0
    drafts: int = 0
    accepted: int = 0
    checkpoints: int = 0
    restores: int = 0
    hits: int = 0
    cancelled: int = 0

    def add(self, other: Stats) -> None:
        """Sum in place."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


@dataclass
class Request:
    """One request, its whole truth, and what has been seen of it."""

    prompt: tuple[int, ...]
    limit_len: int
    stop_tokens: frozenset[int]
    points: tuple[int, ...]
    truth: Sequential
    finish: str
    resumed: int = 0
    emitted: int = 0
    begins_and_steps: int = 0
    accepted: int = 0
    positions: list[int] = field(default_factory=list)


def check(what: str, got: object, want: object) -> None:
    """Raise DivergenceError unless equal."""
    if got != want:
        raise DivergenceError(f"{what}: machine {got!r}, truth {want!r}")


def draw_shape(rng: Random) -> ProtocolShape:
    """Sizes small enough that every boundary is met often; half of the rings are the smallest safe ones."""
    max_drafts, conv_width = rng.choice((0, 1, 2, 3, 4, 5, 7)), rng.randint(1, 5)
    write_first = rng.random() < 0.5
    minimal = policy.min_ring(max_drafts + 1, conv_width, write_first)
    return ProtocolShape(
        max_slots=rng.choice((1, 2, 3, 4, 4)),
        max_drafts=max_drafts,
        conv_width=conv_width,
        page_size=rng.choice((1, 2, 3, 4, 4, 5, 8)),
        ring=minimal if rng.random() < 0.5 else None,
        write_first=write_first,
        drafter_kv_offset=int(rng.random() < 0.75),
    )


def draw_model(rng: Random) -> HashModel:
    """Agreement from almost none to almost always."""
    follow = [rng.choice((0.3, 0.7, 0.9, 0.97, 1.0)) for _ in range(2)]
    return HashModel(rng.getrandbits(30), rng.choice((3, 8, 64)), min(follow[0], 0.97), follow[1])


class Trace:
    """One engine, a few requests, every decision drawn from `rng` (also hypothesis's)."""

    def __init__(
        self, rng: Random, machine: MachineFactory = ProtocolMachine, shape: ProtocolShape | None = None
    ) -> None:
        """machine: a ProtocolMachine or one with a planted fault. shape: None draws one."""
        self.rng = rng
        self.shape = shape or draw_shape(rng)
        self.model = draw_model(rng)
        self.machine = machine(self.shape, self.model)
        self.interval = rng.choice((None, 0, 1, 3, 8))
        self.changing = rng.random() < 0.5  # whether K changes between steps
        self.seen: list[Request] = []
        self.seated: dict[int, Request] = {}
        self.store: list[tuple[Checkpoint, Request]] = []
        self.stats = Stats(traces=1)

    def run(self) -> Stats:
        """Serve the requests, then check that nothing has leaked and no checkpoint has changed."""
        waiting = self.rng.randint(1, 6)
        while waiting or self.seated:
            free = [s for s in range(self.shape.max_slots) if s not in self.seated]
            if waiting and free and (not self.seated or self.rng.random() < 0.6):
                waiting -= 1
                self.admit(self.rng.choice(free))
            else:
                self.advance()
        for checkpoint, request in self.store:
            self.check_checkpoint(checkpoint, request)
            self.machine.evict(checkpoint)
        check("pages in use at the end", self.machine.pages.in_use, 0)
        return self.stats

    def advance(self) -> None:
        """One operation on what is seated."""
        slot = self.rng.choice(list(self.seated))
        phase = self.machine.slots[slot].phase
        if self.rng.randrange(100) == 99:
            self.stats.cancelled += 1
            self.leave(slot)
        elif phase is Phase.PREFILL:
            self.prefill(slot)
        elif phase is Phase.FINISHED:
            self.retire(slot)
        else:
            self.step(slot)

    # Requests

    def draw_prompt(self) -> tuple[int, ...]:
        """New text, or an earlier request's: whole, its prompt, cut anywhere; then a few more tokens or none."""
        rng = self.rng
        head: tuple[int, ...] = ()
        if self.seen and rng.random() < 0.75:
            request = rng.choice(self.seen)
            text = tuple(request.truth.tokens)
            head = rng.choice((text, request.prompt, text[: rng.randint(0, len(text))]))
        more = rng.choice((0, 0, 1, 1, 2, rng.randint(1, 18)))
        return head + tuple(rng.randrange(self.model.vocab_size) for _ in range(more if head else max(more, 1)))

    def admit(self, slot: int) -> None:
        """Seat a new request and resume from the longest checkpoint, or now and then from a shorter one."""
        rng, prompt = self.rng, self.draw_prompt()
        limit_len = len(prompt) + rng.randint(1, 32)
        stops = frozenset(rng.randrange(self.model.vocab_size) for _ in range(rng.choice((0, 0, 1, 2))))
        points = tuple(rng.randint(1, limit_len) for _ in range(rng.choice((0, 0, 1, 3))))
        truth = Sequential(self.shape.conv_width, prompt)
        finish = truth.generate(self.model, limit_len, stops)
        request = Request(prompt, limit_len, stops, points, truth, finish)
        self.seen.append(request)
        self.seated[slot] = request
        self.stats.requests += 1
        self.machine.admit(slot, limit_len, stops)
        self.resume(slot, request)

    def resume(self, slot: int, request: Request) -> None:
        """Restore if a checkpoint fits; the lookup is checked against a plain search."""
        prompt = request.prompt
        fits = {c.position: c for c, _ in self.store if c.tokens == prompt[: c.position]}
        found = policy.resume_position(prompt, [c.key for c, _ in self.store])
        check("resume position", found, max(fits, default=0))
        if fits and self.rng.random() < 0.9:
            request.resumed = found if self.rng.random() < 0.8 else self.rng.choice(list(fits))
            self.machine.restore(slot, fits[request.resumed])
            self.stats.restores += 1
            self.stats.hits += request.resumed == len(prompt)
            self.check_slot(slot)

    def leave(self, slot: int) -> None:
        """Release a slot; now and then evict a checkpoint."""
        self.machine.release(slot)
        del self.seated[slot]
        if self.store and self.rng.random() < 0.3:
            self.machine.evict(self.store.pop(self.rng.randrange(len(self.store)))[0])

    def retained(self, request: Request, length: int, finished: bool = False) -> tuple[int, ...]:
        """Positions of `request` that are kept once `length` tokens are committed."""
        return policy.retained(
            len(request.prompt),
            self.interval,
            self.shape.page_size,
            length=length,
            finished=finished,
            points=request.points,
        )

    def publish(self, checkpoint: Checkpoint, request: Request, position: int) -> None:
        """Check a checkpoint just emitted and offer it to later requests."""
        check("checkpoint position", checkpoint.position, position)
        self.check_checkpoint(checkpoint, request)
        self.store.append((checkpoint, request))
        request.positions.append(position)

    # Operations

    def prefill(self, slot: int) -> None:
        """One more chunk, or begin once the prompt is processed."""
        request = self.seated[slot]
        start, end = self.machine.slots[slot].committed_len, len(request.prompt)
        check("position within the prompt", start <= end, True)
        if start == end:
            self.note(slot, self.machine.begin(slot, self.draw_next()))
            return
        chunk = self.rng.choice((1, 2, self.rng.randint(1, end - start), self.shape.ring_entries, end - start))
        at, count = policy.split_chunks(start, end, chunk)[0]
        wanted = policy.row_checkpoints(at, count, self.retained(request, end))
        result = self.machine.prefill(slot, request.prompt[at : at + count], wanted)
        for position, checkpoint in zip([p for p in wanted if p is not None], result.checkpoints, strict=True):
            self.publish(checkpoint, request, position)
        check("committed_len after a chunk", result.committed_len, at + count)
        rows = tuple(range(max(at - 1, 0), at + count - 1)) if self.shape.drafter else ()
        check("drafter rows of a chunk", result.drafter_rows, rows)
        self.check_slot(slot)

    def draw_next(self) -> int:
        """Drafts for the next step: the maximum, or anything."""
        return self.rng.randint(0, self.shape.max_drafts) if self.changing else self.shape.max_drafts

    def save_due(self, slot: int, finished: bool) -> None:
        """Save the positions that are due, all but the last one unless the slot has finished."""
        request, s = self.seated[slot], self.machine.slots[slot]
        due = policy.due(s.state_len, s.committed_len, self.retained(request, s.committed_len, finished))
        for position in due if finished else due[:-1]:
            self.publish(self.machine.save(slot, position), request, position)

    def step(self, slot: int) -> None:
        """One step of a batch that has `slot` in it, padded to a bucket."""
        rng, slots = self.rng, self.machine.slots
        others = [s for s in self.seated if slots[s].phase is Phase.DECODE and s != slot and rng.random() < 0.85]
        batch = [slot, *others]
        emit: dict[int, int] = {}
        for s in batch:
            self.save_due(s, finished=False)
            position = policy.next_emission(
                slots[s].state_len,
                slots[s].committed_len,
                self.retained(self.seated[s], slots[s].committed_len),
            )
            if position is not None:
                emit[s] = position
        count = policy.verify_drafts([slots[s].num_drafts for s in batch], self.shape.max_drafts)
        count = rng.randint(0, count) if self.changing and rng.random() < 0.3 else count
        seats = batch + [PAD_SLOT_ID] * rng.choice((0, 0, 1, 2))
        rng.shuffle(seats)
        results = self.machine.step(seats, count, self.draw_next(), emit=emit)
        self.stats.steps += 1
        check("seats", [r.slot for r in results], [s for s in seats if s != PAD_SLOT_ID])
        for result in results:
            self.stats.seats += 1
            check("verified drafts", len(result.verified), count)
            check("emission", result.checkpoint is not None, result.slot in emit)
            if result.checkpoint is not None:
                self.publish(result.checkpoint, self.seated[result.slot], emit[result.slot])
            self.note(result.slot, result)

    def note(self, slot: int, result: SeatResult) -> None:
        """Check what begin or a step emitted, and every buffer after it."""
        request = self.seated[slot]
        start = len(request.prompt) + request.emitted
        request.emitted += len(result.emitted)
        request.begins_and_steps += 1
        request.accepted += result.accepted_drafts
        end = start + len(result.emitted)
        text = request.truth.tokens
        check("emitted tokens", result.emitted, tuple(text[start:end]))
        check("finish reason", result.finish, request.finish if end == len(text) else None)
        check("committed_len", (result.committed_len, result.next_token), (end - 1, text[end - 1]))
        check("drafts accepted + steps", request.accepted + request.begins_and_steps, request.emitted)
        longest = result.num_accepted == len(result.verified) + 1
        if result.num_accepted and result.finish is None and not longest:
            wrong = result.verified[result.num_accepted - 1]
            check("first rejected draft equals its target", wrong == result.next_token, False)
        check("accepted drafts", result.verified[: result.accepted_drafts], result.emitted[: result.accepted_drafts])
        first, count = end - 1 - len(result.emitted), len(result.drafts)
        rows = tuple(range(first, end - 1 + max(count - 1, 0))) if self.shape.drafter else ()
        check("drafter rows", result.drafter_rows, rows)
        self.stats.tokens += len(result.emitted)
        self.stats.drafts += count
        self.stats.accepted += result.accepted_drafts
        self.check_slot(slot)

    def retire(self, slot: int) -> None:
        """Save what a finished slot still owes; the published positions must then be exactly the retained ones."""
        request = self.seated[slot]
        self.save_due(slot, finished=True)
        self.check_slot(slot)
        kept = self.retained(request, self.machine.slots[slot].committed_len, finished=True)
        check("published positions", request.positions, [p for p in kept if p > request.resumed])
        check("prompt end", len(request.prompt) in {request.resumed, *request.positions}, True)
        self.leave(slot)

    # Comparison with the truth

    def check_slot(self, slot: int) -> None:
        """Compare every observable buffer of a slot with the truth of its text."""
        request, snap = self.seated[slot], self.machine.snapshot(slot)
        truth, committed = request.truth, snap.committed_len
        decoding = snap.next_token is not None
        check("text", snap.tokens, tuple(truth.tokens[: committed + decoding]))
        check("committed_len - state_len", 0 <= committed - snap.state_len <= self.shape.max_rows, True)
        check(f"state at {snap.state_len}", snap.state, truth.states[snap.state_len])
        check(f"target KV below {committed}", snap.target_kv, tuple(truth.kv[:committed]))
        self.stats.states += 1
        if self.shape.drafter:
            self.check_drafter(request, snap, decoding)

    def check_drafter(self, request: Request, snap: SlotSnapshot, decoding: bool) -> None:
        """KV and proposals are those of a drafter run afresh over the accepted text."""
        rows = snap.committed_len if decoding else max(snap.committed_len - 1, 0)
        check(f"drafter KV of rows below {rows}", snap.drafter_kv, tuple(request.truth.drafter_kv[:rows]))
        if decoding:
            fresh = request.truth.drafts(self.model, snap.committed_len, len(snap.drafts))
            check("drafts", snap.drafts, fresh)

    def check_checkpoint(self, checkpoint: Checkpoint, request: Request) -> None:
        """Compare a checkpoint with the truth of its prefix, pages included."""
        truth, p = request.truth, checkpoint.position
        check("checkpoint tokens", checkpoint.tokens, tuple(truth.tokens[:p]))
        check(f"checkpoint state at {p}", checkpoint.state, truth.states[p])
        check(f"checkpoint conv inputs at {p}", checkpoint.conv_inputs, truth.conv_inputs(p))
        check(f"checkpoint h_last at {p}", checkpoint.h_last, truth.hidden[p - 1])
        drafter_rows = p - 1 if self.shape.drafter else 0
        want = tuple(truth.kv[:p]), tuple(truth.drafter_kv[:drafter_rows])
        check(f"checkpoint KV at {p}", self.machine.checkpoint_kv(checkpoint), want)
        self.stats.checkpoints += 1


def run_trace(seed: int, machine: MachineFactory = ProtocolMachine, shape: ProtocolShape | None = None) -> Stats:
    """One trace. Raises DivergenceError or ProtocolError where the protocol fails."""
    return Trace(Random(seed), machine, shape).run()
