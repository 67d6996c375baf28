"""The protocol of one step, executed literally: buffers per slot, rings, pages, and the operations in their order.

Values come from `protocol.model`: a state is a hash of the tokens folded into it. Tokens come from a `Model`, or are
supplied per call: then the machine is the oracle that an engine runs against in lock-step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsl.reference.protocol import model as layers
from dsl.reference.protocol import policy
from dsl.reference.protocol.buffers import (
    Checkpoint,
    Phase,
    PrefillResult,
    ProtocolShape,
    SeatResult,
    Slot,
    SlotSnapshot,
    Supplied,
)
from dsl.reference.protocol.model import Model
from dsl.reference.protocol.pages import POISON, PagePool, ProtocolError

PAD_SLOT_ID = -1


class ProtocolMachine:
    """An engine of `shape.max_slots` slots. Every operation raises ProtocolError when its rules are broken."""

    def __init__(self, shape: ProtocolShape, model: Model | None = None) -> None:
        """model: source of tokens; None: every token is supplied."""
        self.shape = shape
        self.model = model
        self.pages = PagePool(shape.page_size)
        self.slots = [self._poisoned() for _ in range(shape.max_slots)]

    # Slots

    def _poisoned(self) -> Slot:
        rings = [[POISON] * self.shape.ring_entries for _ in range(3)]
        return Slot(
            drafts=[POISON] * self.shape.max_drafts, conv_ring=rings[0], record_ring=rings[1], hidden_ring=rings[2]
        )

    def admit(self, slot: int, limit_len: int, stop_tokens: frozenset[int] = frozenset()) -> None:
        """Seat a request: lengths are zero, everything else keeps its poison. limit_len: tokens, prompt included."""
        self._expect(slot, Phase.FREE)
        s = self.slots[slot]
        s.committed_len = s.state_len = 0
        s.limit_len, s.stop_tokens, s.phase = limit_len, stop_tokens, Phase.PREFILL

    def release(self, slot: int) -> None:
        """Take a slot back, at any time, and poison it."""
        self.pages.drop(self.slots[slot].page_table)
        self.slots[slot] = self._poisoned()

    def snapshot(self, slot: int) -> SlotSnapshot:
        """The observable buffers of a slot that is in use."""
        s = self.slots[slot]
        decoding = s.phase in (Phase.DECODE, Phase.FINISHED)
        rows = (s.committed_len if decoding else max(s.committed_len - 1, 0)) if self.shape.drafter else 0
        return SlotSnapshot(
            slot, s.phase, tuple(s.tokens), s.committed_len, s.state_len, s.next_token if decoding else None,
            tuple(s.drafts[: s.num_drafts]), s.state, self._target_kv(s, s.committed_len), self._drafter_kv(s, rows),
        )  # fmt: skip

    def _expect(self, slot: int, *phases: Phase) -> None:
        if not 0 <= slot < self.shape.max_slots:
            raise ProtocolError(f"slot {slot} is outside 0..{self.shape.max_slots - 1}")
        if self.slots[slot].phase not in phases:
            raise ProtocolError(f"slot {slot} is in phase {self.slots[slot].phase.value}, expected {phases}")

    # Rings and pages

    def _index(self, position: int) -> int:
        return position % self.shape.ring_entries

    def _read(self, ring: list[int], position: int) -> int:
        value = ring[self._index(position)]
        if value == POISON:
            raise ProtocolError(f"ring entry of position {position} is read but was never written")
        return value

    def _write(self, ring: list[int], position: int, value: int) -> None:
        ring[self._index(position)] = value

    def _conv_inputs(self, s: Slot, start: int, stop: int) -> list[int]:
        """Raw conv inputs of positions start .. stop - 1; positions below zero read as zero."""
        return [self._read(s.conv_ring, p) if p >= 0 else 0 for p in range(start, stop)]

    def _reserve(self, s: Slot, rows: int, next_drafts: int) -> None:
        """Take pages for all KV entries that a launch may write."""
        shape = self.shape
        wanted = policy.reserved_len(s.committed_len, rows, next_drafts, shape.drafter, shape.drafter_kv_offset)
        wanted = min(wanted, policy.max_kv_len(s.limit_len, shape.max_drafts))
        while len(s.page_table) * shape.page_size < wanted:
            s.page_table.append(self.pages.take())

    def _target_kv(self, s: Slot, rows: int) -> tuple[int, ...]:
        return self.pages.read(self.pages.target, s.page_table, 0, rows)

    def _drafter_kv(self, s: Slot, rows: int) -> tuple[int, ...]:
        offset = self.shape.drafter_kv_offset
        return self.pages.read(self.pages.drafter, s.page_table, offset, rows + offset)

    # Rows

    def _target_row(self, s: Slot, position: int, state: int) -> int:
        """Attention part of a row that has folded itself into `state`: writes its KV, returns its hidden state."""
        self.pages.write(self.pages.target, s.page_table, position, layers.key_value(state, position))
        return layers.hidden_state(state, self._target_kv(s, position + 1))

    def _drafter_row(self, s: Slot, position: int, hidden: int, token: int) -> int:
        """One drafter row: hidden state of `position`, token of `position + 1`. Returns the drafter's hidden state."""
        value = layers.drafter_key_value(hidden, token, position)
        self.pages.write(self.pages.drafter, s.page_table, position + self.shape.drafter_kv_offset, value)
        return layers.drafter_hidden(hidden, token, self._drafter_kv(s, position + 1))

    def _target_token(self, hidden: int, position: int, supplied: Supplied | None, row: int) -> int:
        if supplied is not None:
            if row >= len(supplied.targets):
                raise ProtocolError(f"row {row} is accepted, but only {len(supplied.targets)} targets were supplied")
            return supplied.targets[row]
        if self.model is None:
            raise ProtocolError("a machine without a model needs supplied tokens")
        return self.model.target(hidden, position)

    def _draft_token(self, hidden: int, position: int, supplied: Supplied | None, index: int) -> int:
        if supplied is not None:
            if index >= len(supplied.drafts):
                raise ProtocolError(f"draft {index} is due, but only {len(supplied.drafts)} drafts were supplied")
            return supplied.drafts[index]
        if self.model is None:
            raise ProtocolError("a machine without a model needs supplied tokens")
        return self.model.draft(hidden, position)

    # Prefill

    def prefill(
        self, slot: int, tokens: Sequence[int], row_checkpoint: Sequence[int | None] | None = None
    ) -> PrefillResult:
        """Run one chunk: positions committed_len .. committed_len + n - 1, n >= 1, any n (also beyond the ring).

        row_checkpoint: per row, the position of the checkpoint written after it (its own plus one), or None.
        """
        self._expect(slot, Phase.PREFILL)
        s = self.slots[slot]
        start, wanted = s.committed_len, row_checkpoint or (None,) * len(tokens)
        if not tokens or s.state_len != start or start + len(tokens) >= s.limit_len or len(wanted) != len(tokens):
            raise ProtocolError(f"slot {slot}: a chunk of {len(tokens)} tokens at {start} is not allowed here")
        s.tokens.extend(tokens)
        self._reserve(s, len(tokens), 0)
        # Chunk scratch: the ring's entries before the chunk are read before the chunk's own tail is written.
        inputs = self._conv_inputs(s, start - self.shape.conv_width + 1, start)
        inputs += [layers.conv_input(token, start + i) for i, token in enumerate(tokens)]
        hidden, checkpoints = self._prefill_rows(s, inputs, wanted)
        drafter_rows = self._prefill_drafter(s, tokens, hidden) if self.shape.drafter else ()
        self._write_tail(s, inputs, hidden)
        s.state_len = s.committed_len = start + len(tokens)
        return PrefillResult(slot, s.committed_len, checkpoints, drafter_rows)

    def _prefill_rows(
        self, s: Slot, inputs: list[int], wanted: Sequence[int | None]
    ) -> tuple[list[int], tuple[Checkpoint, ...]]:
        """Target rows, with the checkpoints after them; leaves the state of the chunk's end in `S`."""
        width, start = self.shape.conv_width, s.committed_len
        state = self._first_state(s)
        hidden, checkpoints = [], []
        for i, at in enumerate(wanted):
            state = layers.fold(state, layers.record(inputs[i : i + width]))
            hidden.append(self._target_row(s, start + i, state))
            if at is not None:
                conv_inputs = tuple(inputs[i + 1 : i + width])
                checkpoints.append(self._checkpoint(s, start + i + 1, state, conv_inputs, hidden[i]))
        s.state = state
        return hidden, tuple(checkpoints)

    def _first_state(self, s: Slot) -> int:
        """A chunk at position zero starts from the initial state, whatever `S` holds."""
        return s.state if s.committed_len else layers.INITIAL_STATE

    def _prefill_drafter(self, s: Slot, tokens: Sequence[int], hidden: list[int]) -> tuple[int, ...]:
        """Drafter rows start - 1 .. start + n - 2: the first pairs the ring's last hidden state; there is no row -1."""
        start = s.committed_len
        rows = tuple(range(max(start - 1, 0), start + len(tokens) - 1))
        for p in rows:
            before = self._read(s.hidden_ring, p) if p < start else hidden[p - start]
            self._drafter_row(s, p, before, tokens[p + 1 - start])
        return rows

    def _write_tail(self, s: Slot, inputs: list[int], hidden: list[int]) -> None:
        """Leave in the rings what the next chunk, begin or step reads: conv_width - 1 inputs, one hidden state."""
        end = s.committed_len + len(hidden)
        for p in range(max(s.committed_len, end - self.shape.conv_width + 1), end):
            self._write(s.conv_ring, p, inputs[p - end])
        self._write(s.hidden_ring, end - 1, hidden[-1])

    # Begin and step

    def begin(self, slot: int, next_drafts: int, supplied: Supplied | None = None) -> SeatResult:
        """Sample the first token from the hidden state of position committed_len - 1, then draft."""
        self._expect(slot, Phase.PREFILL)
        s = self.slots[slot]
        if not s.committed_len or not 0 <= next_drafts <= self.shape.max_drafts:
            raise ProtocolError(f"slot {slot}: cannot begin at {s.committed_len} with {next_drafts} drafts")
        self._reserve(s, 0, next_drafts)
        last = self._read(s.hidden_ring, s.committed_len - 1)
        token = self._target_token(last, s.committed_len, supplied, 0)
        s.next_token, s.phase = token, Phase.DECODE
        s.tokens.append(token)
        finish = self._finish(s, token, s.committed_len + 1)
        return self._drafted(slot, (), (token,), 0, finish, next_drafts, supplied, None)

    def step(
        self,
        slot_idx: Sequence[int],
        verify_drafts: int,
        next_drafts: int,
        *,
        emit: Mapping[int, int] | None = None,
        supplied: Mapping[int, Supplied] | None = None,
    ) -> list[SeatResult]:
        """One step of a bucket: commit and verify all seats, accept all, draft all. PAD_SLOT_ID seats are skipped.

        verify_drafts: K; every seat has at least that many drafts. next_drafts: proposals made for the next step.
        emit: `emit_position` per slot. supplied: per slot. Results are those of the seats in order, padding left out.
        """
        seats = self._seats(slot_idx)
        self._check_step(seats, verify_drafts, next_drafts)
        emit, supplied = emit or {}, supplied or {}
        for slot in seats:
            self._reserve(self.slots[slot], verify_drafts + 1, next_drafts)
        checkpoints = [self._verify(self.slots[slot], verify_drafts, emit.get(slot)) for slot in seats]
        verified = [tuple(self.slots[slot].drafts[:verify_drafts]) for slot in seats]
        accepted = [self._accept(self.slots[slot], verify_drafts, supplied.get(slot)) for slot in seats]
        return [
            self._drafted(slot, before, emitted, len(emitted), finish, next_drafts, supplied.get(slot), checkpoint)
            for slot, before, (emitted, finish), checkpoint in zip(seats, verified, accepted, checkpoints, strict=True)
        ]

    def _seats(self, slot_idx: Sequence[int]) -> list[int]:
        return [slot for slot in slot_idx if slot != PAD_SLOT_ID]

    def _check_step(self, seats: list[int], verify_drafts: int, next_drafts: int) -> None:
        for slot in seats:
            self._expect(slot, Phase.DECODE)
            if self.slots[slot].num_drafts < verify_drafts:
                raise ProtocolError(f"slot {slot} has {self.slots[slot].num_drafts} drafts, {verify_drafts} asked for")
        if len(set(seats)) != len(seats):
            raise ProtocolError(f"a slot has two seats: {seats}")
        if not (0 <= verify_drafts <= self.shape.max_drafts and 0 <= next_drafts <= self.shape.max_drafts):
            raise ProtocolError(f"{verify_drafts} or {next_drafts} drafts are more than {self.shape.max_drafts}")

    def _verify(self, s: Slot, verify_drafts: int, emit_position: int | None) -> Checkpoint | None:
        """Commit, emit, and run the rows of next_token and the drafts; writes rings and KV, never `S` of new rows."""
        base = s.committed_len
        tokens = [s.next_token, *s.drafts[:verify_drafts]]
        emits = emit_position is not None and s.state_len <= emit_position <= base
        at = emit_position if emits and emit_position is not None else base
        if self.shape.write_first:
            self._write_rows(s, tokens)
        state_at = self._commit(s, at)
        checkpoint = None
        if not self.shape.write_first:
            checkpoint = self._capture(s, at, state_at) if emits else None
            self._write_rows(s, tokens)
        state = s.state
        for p in range(base, base + len(tokens)):
            state = layers.fold(state, self._read(s.record_ring, p))
            self._write(s.hidden_ring, p, self._target_row(s, p, state))
        if self.shape.write_first and emits:
            checkpoint = self._capture(s, at, state_at)
        return checkpoint

    def _write_rows(self, s: Slot, tokens: Sequence[int]) -> None:
        """Ring entries of new rows: raw conv inputs, then records (of the conv over the ring)."""
        base = s.committed_len
        for p, token in enumerate(tokens, base):
            self._write(s.conv_ring, p, layers.conv_input(token, p))
        for p in range(base, base + len(tokens)):
            window = self._conv_inputs(s, p - self.shape.conv_width + 1, p + 1)
            self._write(s.record_ring, p, layers.record(window))

    def _commit(self, s: Slot, at: int) -> int:
        """Fold the records of [state_len, committed_len) into `S`. Returns the state at position `at` on the way."""
        state_at = s.state
        for p in range(s.state_len, s.committed_len):
            s.state = layers.fold(s.state, self._read(s.record_ring, p))
            if p + 1 == at:
                state_at = s.state
        return state_at

    def _capture(self, s: Slot, at: int, state: int) -> Checkpoint:
        """A checkpoint from the rings."""
        conv_inputs = tuple(self._conv_inputs(s, at - self.shape.conv_width + 1, at))
        return self._checkpoint(s, at, state, conv_inputs, self._read(s.hidden_ring, at - 1))

    def _checkpoint(self, s: Slot, at: int, state: int, conv_inputs: tuple[int, ...], h_last: int) -> Checkpoint:
        pages = self.pages.share(s.page_table[: policy.num_pages(at, self.shape.page_size)])
        return Checkpoint(at, tuple(s.tokens[:at]), state, conv_inputs, h_last, pages)

    def _accept(self, s: Slot, verify_drafts: int, supplied: Supplied | None) -> tuple[tuple[int, ...], str | None]:
        """Leading drafts equal to their targets, plus one; cut after the first stop token and at limit_len."""
        base, emitted, finish = s.committed_len, [], None
        for i in range(verify_drafts + 1):
            token = self._target_token(self._read(s.hidden_ring, base + i), base + i + 1, supplied, i)
            emitted.append(token)
            finish = self._finish(s, token, base + i + 2)
            if finish or i == verify_drafts or s.drafts[i] != token:
                break
        s.state_len = base
        s.committed_len = base + len(emitted)
        s.next_token = emitted[-1]
        s.tokens.extend(emitted)
        return tuple(emitted), finish

    def _finish(self, s: Slot, token: int, length: int) -> str | None:
        """Why a slot ends with `token`, the last of `length` tokens; a stop token goes before the limit."""
        if token in s.stop_tokens:
            return "stop"
        return "limit" if length == s.limit_len else None

    def _drafted(
        self,
        slot: int,
        verified: tuple[int, ...],
        emitted: tuple[int, ...],
        num_accepted: int,
        finish: str | None,
        next_drafts: int,
        supplied: Supplied | None,
        checkpoint: Checkpoint | None,
    ) -> SeatResult:
        """The draft phase of a seat, and its result. A slot that has finished runs it too: a save may follow."""
        s = self.slots[slot]
        rows = self._draft(s, emitted, next_drafts, supplied) if self.shape.drafter else ()
        if finish:
            s.phase = Phase.FINISHED
        return SeatResult(
            slot, verified, num_accepted, emitted, finish, s.committed_len, s.state_len, s.next_token,
            tuple(s.drafts[: s.num_drafts]), rows, checkpoint,
        )  # fmt: skip

    def _draft(self, s: Slot, emitted: tuple[int, ...], next_drafts: int, supplied: Supplied | None) -> tuple[int, ...]:
        """Drafter rows of the accepted positions, also if next_drafts is 0; then one row per further draft."""
        end = s.committed_len
        hidden = POISON
        for p, token in enumerate(emitted, end - len(emitted)):
            hidden = self._drafter_row(s, p, self._read(s.hidden_ring, p), token)
        for j in range(next_drafts):
            if j:
                hidden = self._drafter_row(s, end + j - 1, hidden, s.drafts[j - 1])
            s.drafts[j] = self._draft_token(hidden, end + 1 + j, supplied, j)
        s.num_drafts = next_drafts
        return tuple(range(end - len(emitted), end + max(next_drafts - 1, 0)))

    # Checkpoints

    def save(self, slot: int, position: int) -> Checkpoint:
        """Commit up to `position` without verifying, and emit there; state_len <= position <= committed_len.

        Folds [state_len, position) into `S` and sets state_len = position, so further positions can be saved, in
        ascending order, and a running slot can go on.
        """
        self._expect(slot, Phase.PREFILL, Phase.DECODE, Phase.FINISHED)
        s = self.slots[slot]
        if position < 1 or not s.state_len <= position <= s.committed_len:
            raise ProtocolError(f"slot {slot}: position {position} is outside [{s.state_len}, {s.committed_len}]")
        for p in range(s.state_len, position):
            s.state = layers.fold(s.state, self._read(s.record_ring, p))
        s.state_len = position
        return self._capture(s, position, s.state)

    def restore(self, slot: int, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint into a slot just admitted; it goes on with prefill (or begin) at exactly its position."""
        self._expect(slot, Phase.PREFILL)
        s, p, offset = self.slots[slot], checkpoint.position, self.shape.drafter_kv_offset
        if s.committed_len or p >= s.limit_len:
            raise ProtocolError(f"slot {slot}: cannot restore {p} at {s.committed_len}, limit {s.limit_len}")
        shared = self._shared_pages(p)
        s.page_table = list(self.pages.share(checkpoint.pages[:shared]))
        for page in checkpoint.pages[shared:]:
            first = shared * self.shape.page_size
            s.page_table.append(self.pages.copy(page, p - first, max(p - 1 + offset - first, 0)))
        s.state, s.state_len, s.committed_len = checkpoint.state, p, p
        for at, value in enumerate(checkpoint.conv_inputs, p - self.shape.conv_width + 1):
            if at >= 0:
                self._write(s.conv_ring, at, value)
        self._write(s.hidden_ring, p - 1, checkpoint.h_last)
        s.tokens = list(checkpoint.tokens)

    def _shared_pages(self, position: int) -> int:
        lag = self.shape.drafter and self.shape.drafter_kv_offset == 0
        return policy.shared_pages(position, self.shape.page_size, drafter_lag=lag)

    def checkpoint_kv(self, checkpoint: Checkpoint) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What its pages must hold for ever: target entries below its position, drafter rows below position - 1."""
        offset = self.shape.drafter_kv_offset
        rows = checkpoint.position - 1 if self.shape.drafter else 0
        target = self.pages.read(self.pages.target, checkpoint.pages, 0, checkpoint.position)
        return target, self.pages.read(self.pages.drafter, checkpoint.pages, offset, rows + offset)

    def evict(self, checkpoint: Checkpoint) -> None:
        """Give up the pages of a checkpoint. It must not be restored afterwards."""
        self.pages.drop(checkpoint.pages)
