"""Random traces of the protocol, the smallest safe ring, and planted faults that the traces must find."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsl.reference.protocol import PAD_SLOT_ID, POISON, Phase, ProtocolError, ProtocolMachine, ProtocolShape, policy
from dsl.reference.protocol.fuzz import DivergenceError, Stats, Trace, run_trace
from dsl.reference.protocol.model import conv_input

FOUND = (DivergenceError, ProtocolError, IndexError)
CI_TRACES = 600
MUTANT_TRACES = 400


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_traces_that_shrink(rng):
    Trace(rng).run()


def test_traces():
    total, patterns = Stats(), Counter()

    class Counting(ProtocolMachine):
        def step(self, *args, **kwargs):
            results = super().step(*args, **kwargs)
            patterns.update((len(r.verified), r.num_accepted, r.finish) for r in results)
            return results

    for seed in range(CI_TRACES):
        total.add(run_trace(seed, Counting))
    for drafts in (0, 1, 2, 3, 4, 5, 7):
        for accepted in range(1, drafts + 2):
            assert any(patterns[drafts, accepted, finish] for finish in (None, "stop", "limit")), (drafts, accepted)
    assert {finish for _, _, finish in patterns} == {None, "stop", "limit"}
    assert min(total.restores, total.hits, total.cancelled) > 50


# The smallest ring


class Always:
    """Every draft is accepted: the widest window between state_len and the last row."""

    def target(self, hidden: int, position: int) -> int:
        return position

    def draft(self, hidden: int, position: int) -> int:
        return position


def worst_case(shape: ProtocolShape):
    """Full acceptance, a checkpoint at the first position of each window, maximal rows: what the ring must survive."""
    machine = ProtocolMachine(shape, Always())
    machine.admit(0, 200)
    machine.prefill(0, list(range(20)))
    machine.begin(0, shape.max_drafts)
    seen = []
    for _ in range(6):
        state_len, committed_len = machine.slots[0].state_len, machine.slots[0].committed_len
        emit = {0: state_len + 1} if committed_len > state_len else {}
        (result,) = machine.step([0], shape.max_drafts, shape.max_drafts, emit=emit)
        seen.append((result.drafts, result.checkpoint and replace(result.checkpoint, pages=())))
    snap = machine.snapshot(0)
    return seen, snap.state, snap.target_kv, snap.drafter_kv


@pytest.mark.parametrize("write_first", [True, False])
@pytest.mark.parametrize("conv_width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("max_drafts", [0, 1, 2, 3, 7])
def test_the_smallest_safe_ring(max_drafts, conv_width, write_first):
    shape = ProtocolShape(max_drafts=max_drafts, conv_width=conv_width, write_first=write_first)
    minimal = policy.min_ring(shape.max_rows, conv_width, write_first)
    assert minimal <= 2 * shape.max_rows + 2 * conv_width <= policy.ring_size(shape.max_rows, conv_width)
    want = worst_case(replace(shape, ring=1000))
    for ring in range(1, shape.ring_entries + 1):
        try:
            safe = worst_case(replace(shape, ring=ring)) == want
        except ProtocolError:
            safe = False
        assert safe == (ring >= minimal), ring
    for seed in range(10):
        run_trace(seed, shape=replace(shape, ring=minimal, max_slots=2, page_size=4))


# Planted faults


class RingTooSmall(ProtocolMachine):
    """One entry fewer than the smallest safe ring."""

    def __init__(self, shape, model):
        ring = policy.min_ring(shape.max_rows, shape.conv_width, shape.write_first) - 1
        super().__init__(replace(shape, ring=max(ring, 1)), model)


class PairsOwnToken(ProtocolMachine):
    """The drafter pairs hidden state i with token i."""

    def _draft(self, s, emitted, next_drafts, supplied):
        shifted = tuple(s.tokens[s.committed_len - len(emitted) : s.committed_len])
        return super()._draft(s, shifted, next_drafts, supplied)


class EmitsOneTokenLate(ProtocolMachine):
    """The state of a checkpoint holds one token too many."""

    def _commit(self, s, at):
        return super()._commit(s, at + 1)


class EmitsCommittedState(ProtocolMachine):
    """A checkpoint inside the window gets the state at its end."""

    def _commit(self, s, at):
        return super()._commit(s, s.committed_len)


class HiddenOfLastCommitted(ProtocolMachine):
    """A checkpoint inside the window gets the hidden state of the window's end."""

    def _capture(self, s, at, state):
        h_last = self._read(s.hidden_ring, s.committed_len - 1)
        return replace(super()._capture(s, at, state), h_last=h_last)


class ConvNotRolledBack(ProtocolMachine):
    """The conv window is a shift register: it keeps the inputs of rejected rows."""

    def _write_rows(self, s, tokens):
        width, base = self.shape.conv_width, s.committed_len
        ends = self.__dict__.setdefault("ends", {})
        shift = ends.get(id(s), (s, base))[1] - base
        stale = self._conv_inputs(s, base + shift - width + 1, base + shift)
        for p, value in zip(range(base - width + 1, base), stale, strict=True):
            if p >= 0:
                self._write(s.conv_ring, p, value)
        ends[id(s)] = s, base + len(tokens)
        super()._write_rows(s, tokens)


class RejectedRowsFolded(ProtocolMachine):
    """The commit folds all rows of the last pass, accepted or not."""

    def _accept(self, s, verify_drafts, supplied):
        self.__dict__.setdefault("rows", {})[id(s)] = s, verify_drafts + 1
        return super()._accept(s, verify_drafts, supplied)

    def _commit(self, s, at):
        rows = self.__dict__.get("rows", {}).get(id(s), (s, 0))[1]
        accepted, s.committed_len = s.committed_len, max(s.committed_len, s.state_len + rows)
        state = super()._commit(s, at)
        s.committed_len = accepted
        return state


class DrafterKVKept(ProtocolMachine):
    """The drafter does not run again over rows that it has already drafted through."""

    def _drafter_row(self, s, position, hidden, token):
        index, offset = divmod(position + self.shape.drafter_kv_offset, self.shape.page_size)
        before = self.pages.drafter[s.page_table[index]][offset]
        result = super()._drafter_row(s, position, hidden, token)
        if before != POISON:
            self.pages.drafter[s.page_table[index]][offset] = before
        return result


class PadIsSlotZero(ProtocolMachine):
    """An empty seat of a bucket is a row of slot 0 (while that decodes: the rest would crash at once)."""

    def _check_step(self, seats, verify_drafts, next_drafts):
        pass

    def step(self, slot_idx, verify_drafts, next_drafts, **kwargs):
        s = self.slots[0]
        decoding = s.phase is Phase.DECODE and s.num_drafts >= verify_drafts
        rows = [0 if slot == PAD_SLOT_ID and decoding else slot for slot in slot_idx]
        results = iter(super().step(rows, verify_drafts, next_drafts, **kwargs))
        kept = [(slot, next(results)) for row, slot in zip(rows, slot_idx, strict=True) if row != PAD_SLOT_ID]
        return [result for slot, result in kept if slot != PAD_SLOT_ID]


class LimitOneLater(ProtocolMachine):
    """One token more than the limit."""

    def _finish(self, s, token, length):
        return super()._finish(s, token, length - 1)


class LimitOneEarlier(ProtocolMachine):
    """One token fewer than the limit."""

    def _finish(self, s, token, length):
        return super()._finish(s, token, length + 1)


class StopOnlyAtTheEnd(ProtocolMachine):
    """A stop token among the accepted drafts does not cut."""

    def _accept(self, s, verify_drafts, supplied):
        stops, s.stop_tokens = s.stop_tokens, frozenset()
        emitted, finish = super()._accept(s, verify_drafts, supplied)
        s.stop_tokens = stops
        return emitted, "stop" if emitted[-1] in stops else finish


class StateLenStays(ProtocolMachine):
    """Accept does not advance state_len: rows are folded twice."""

    def _accept(self, s, verify_drafts, supplied):
        before = s.state_len
        result = super()._accept(s, verify_drafts, supplied)
        s.state_len = max(before, s.committed_len - self.shape.max_rows)
        return result


class PartialPageShared(ProtocolMachine):
    """A resuming slot writes into the partial page of the checkpoint."""

    def restore(self, slot, checkpoint):
        copy, self.pages.copy = self.pages.copy, lambda page, *_: self.pages.share([page])[0]
        super().restore(slot, checkpoint)
        self.pages.copy = copy


class FullPagesSharedWithLag(ProtocolMachine):
    """Drafter row i in entry i, and all full pages shared: the last one is written by every fork."""

    def __init__(self, shape, model):
        super().__init__(replace(shape, drafter_kv_offset=0), model)

    def _shared_pages(self, position):
        return position // self.shape.page_size


class NoDraftsNoRows(ProtocolMachine):
    """The drafter is skipped when the next step verifies no drafts."""

    def _draft(self, s, emitted, next_drafts, supplied):
        s.num_drafts = 0
        rows = range(s.committed_len - len(emitted), s.committed_len)
        return super()._draft(s, emitted, next_drafts, supplied) if next_drafts else tuple(rows)


class FinishedSlotsDoNotDraft(ProtocolMachine):
    """The draft phase skips a slot that has just finished, though a checkpoint is still due."""

    def _draft(self, s, emitted, next_drafts, supplied):
        if s.tokens[-1] in s.stop_tokens or len(s.tokens) == s.limit_len:
            s.num_drafts = 0
            return tuple(range(s.committed_len - len(emitted), s.committed_len))
        return super()._draft(s, emitted, next_drafts, supplied)


class DraftsStale(ProtocolMachine):
    """The drafts buffer is not written again if K stays: the text is right, the drafter is useless."""

    def _draft(self, s, emitted, next_drafts, supplied):
        before = s.drafts[: s.num_drafts]
        rows = super()._draft(s, emitted, next_drafts, supplied)
        if len(before) == next_drafts:
            s.drafts[:next_drafts] = before
        return rows


class DraftsOfAnotherSeat(ProtocolMachine):
    """Two seats of a batch swap their drafts."""

    def step(self, slot_idx, *args, **kwargs):
        results = super().step(slot_idx, *args, **kwargs)
        if len(results) > 1:
            a, b = (self.slots[r.slot] for r in results[:2])
            a.drafts, b.drafts = b.drafts, a.drafts
        return results


class TailBeforeDrafter(ProtocolMachine):
    """A chunk writes its last hidden state into the ring before the drafter has read the one before the chunk."""

    def _prefill_rows(self, s, inputs, wanted):
        hidden, checkpoints = super()._prefill_rows(s, inputs, wanted)
        self._write_tail(s, inputs, hidden)
        return hidden, checkpoints


class ConvTailBeforeChunk(ProtocolMachine):
    """A chunk writes its last raw conv inputs into the ring before its first rows have read those before the chunk."""

    def prefill(self, slot, tokens, row_checkpoint=None):
        s = self.slots[slot]
        for p, token in list(enumerate(tokens, s.committed_len))[1 - self.shape.conv_width or len(tokens) :]:
            self._write(s.conv_ring, p, conv_input(token, p))
        return super().prefill(slot, tokens, row_checkpoint)


class ChunksUnpaired(ProtocolMachine):
    """The drafter's row across the border of two chunks is left out."""

    def _prefill_drafter(self, s, tokens, hidden):
        rows = range(max(s.committed_len - 1, 0), s.committed_len + len(tokens) - 1)
        for p in rows:
            if p >= s.committed_len:
                self._drafter_row(s, p, hidden[p - s.committed_len], tokens[p + 1 - s.committed_len])
        return tuple(rows)


class StateOfLastOwner(ProtocolMachine):
    """A chunk at position zero continues from what the slot holds."""

    def _first_state(self, s):
        return s.state


class NegativePositionsRead(ProtocolMachine):
    """Positions below zero read the ring."""

    def _conv_inputs(self, s, start, stop):
        return [self._read(s.conv_ring, p) for p in range(start, stop)]


class RestoreLeavesConv(ProtocolMachine):
    """Restore copies the state but not the conv inputs."""

    def restore(self, slot, checkpoint):
        super().restore(slot, replace(checkpoint, conv_inputs=()))


class PagesForVerifyRowsOnly(ProtocolMachine):
    """Pages are reserved for the rows of the verify pass, not for the drafter's chained rows beyond them."""

    def _reserve(self, s, rows, next_drafts):
        super()._reserve(s, rows, 0)


class AcceptsOneTooFew(ProtocolMachine):
    """The last draft is never compared: the text is right, the acceptance is not."""

    def _accept(self, s, verify_drafts, supplied):
        return super()._accept(s, max(verify_drafts - 1, 0), supplied)


MUTANTS = [cls for cls in ProtocolMachine.__subclasses__() if cls.__module__ == __name__ and cls.__doc__]


def first_failure(machine) -> tuple[int, str] | None:
    """Number and message of the first trace that fails."""
    for seed in range(MUTANT_TRACES):
        try:
            run_trace(seed, machine)
        except FOUND as error:
            return seed, str(error)
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda cls: cls.__name__)
def test_a_planted_fault_is_found(mutant):
    assert first_failure(mutant) is not None


class OnePerWindow(Trace):
    """A host that emits one checkpoint per window, also if two retained positions lie in it."""

    def save_due(self, slot, finished):
        s = self.machine.slots[slot]
        due = policy.due(s.state_len, s.committed_len, self.retained(self.seated[slot], s.committed_len, finished))
        for position in due[-1:] if finished else ():
            self.publish(self.machine.save(slot, position), self.seated[slot], position)


def test_one_checkpoint_per_window_is_not_enough():
    shape = ProtocolShape(page_size=8, max_drafts=7)
    with pytest.raises(DivergenceError, match="published positions"):
        for seed in range(MUTANT_TRACES):
            OnePerWindow(Random(seed), shape=shape).run()
