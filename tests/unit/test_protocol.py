"""The protocol simulator: serving by any route gives the tokens, states and checkpoints of the sequential truth."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from dsl.reference.protocol import (
    PAD_SLOT_ID,
    Checkpoint,
    HashModel,
    Phase,
    ProtocolError,
    ProtocolMachine,
    ProtocolShape,
    SeatResult,
    Sequential,
    Supplied,
    policy,
)
from dsl.reference.protocol.__main__ import main
from runtime.checkpoints.retention import NEVER, next_retained
from runtime.checkpoints.retention import retained as runtime_retained

MODEL = HashModel(seed=3, vocab_size=50, target_follow=0.9, draft_follow=0.9)
PROMPT = (7, 1, 1, 9, 30, 2, 2, 2, 41, 5, 17)


class Always:
    """A model whose drafter is always right: every token is its position."""

    def target(self, hidden: int, position: int) -> int:
        return position

    def draft(self, hidden: int, position: int) -> int:
        return position


def truth_of(prompt=PROMPT, limit_len=40, stop_tokens=frozenset(), model=MODEL, conv_width=4):
    """The sequential run of a request, and its finish reason."""
    truth = Sequential(conv_width, prompt)
    return truth, truth.generate(model, limit_len, stop_tokens)


def prefill(machine, slot, prompt=PROMPT, limit_len=40, chunk=4, stop_tokens=frozenset(), restore=None):
    """Admit, maybe restore, prefill. Returns the checkpoints after every row, and the tokens computed."""
    machine.admit(slot, limit_len, stop_tokens)
    if restore is not None:
        machine.restore(slot, restore)
    start = machine.slots[slot].committed_len
    checkpoints = []
    for at, count in policy.split_chunks(start, len(prompt), chunk):
        wanted = tuple(range(at + 1, at + count + 1))
        checkpoints += machine.prefill(slot, prompt[at : at + count], wanted).checkpoints
    return checkpoints, len(prompt) - start


def decode(machine, slot, counts) -> list[SeatResult]:
    """Begin and step alone until finished; `counts` yields the drafts of each next step."""
    results = [machine.begin(slot, next(counts))]
    while machine.slots[slot].phase is Phase.DECODE:
        committed, state = machine.slots[slot].committed_len, machine.slots[slot].state_len
        emit = {slot: committed} if committed > state else {}
        results += machine.step([slot], machine.slots[slot].num_drafts, next(counts), emit=emit)
    return results


def forever(*counts):
    """Cycle through draft counts."""
    while True:
        yield from counts


def tokens_of(results) -> tuple[int, ...]:
    return tuple(token for r in results for token in r.emitted)


def content(checkpoint: Checkpoint):
    return checkpoint.tokens, checkpoint.state, checkpoint.conv_inputs, checkpoint.h_last


@pytest.mark.parametrize("counts", [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,), (7, 0, 2), (0, 5), (1, 7, 3, 0)])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 11])
def test_any_k_and_any_chunks_give_the_same_tokens_states_and_checkpoints(counts, chunk):
    truth, finish = truth_of()
    machine = ProtocolMachine(ProtocolShape(page_size=4), MODEL)
    checkpoints, _ = prefill(machine, 0, chunk=chunk)
    results = decode(machine, 0, forever(*counts))
    checkpoints += [r.checkpoint for r in results if r.checkpoint is not None]
    assert PROMPT + tokens_of(results) == tuple(truth.tokens)
    assert results[-1].finish == finish == "limit"
    assert [c.position for c in checkpoints[: len(PROMPT)]] == list(range(1, len(PROMPT) + 1))
    assert len(checkpoints) > len(PROMPT)
    for c in checkpoints:
        p = c.position
        assert content(c) == (tuple(truth.tokens[:p]), truth.states[p], truth.conv_inputs(p), truth.hidden[p - 1])


@pytest.mark.parametrize("chunk", [16, 32, 33, 64, 200])
def test_chunks_longer_than_the_ring_and_multiples_of_it(chunk):
    shape = ProtocolShape(max_drafts=3, conv_width=4)
    assert shape.ring_entries == 16
    prompt = tuple(range(200))
    machine = ProtocolMachine(shape, MODEL)
    prefill(machine, 0, prompt, 240, chunk)
    truth, _ = truth_of(prompt, 240)
    assert machine.snapshot(0).drafter_kv == tuple(truth.drafter_kv[:199])
    assert PROMPT and prompt + tokens_of(decode(machine, 0, forever(3))) == tuple(truth.tokens)


def test_an_engine_without_a_drafter():
    machine = ProtocolMachine(ProtocolShape(max_drafts=0), MODEL)
    prefill(machine, 0)
    results = decode(machine, 0, forever(0))
    assert PROMPT + tokens_of(results) == tuple(truth_of()[0].tokens)
    assert all(r.drafter_rows == () for r in results)


def test_batched_with_padding_equals_alone_drafts_and_acceptance_included():
    prompts = [PROMPT, PROMPT[:5], (3, 3, 3), PROMPT[::-1]]
    alone = []
    for prompt in prompts:
        machine = ProtocolMachine(ProtocolShape(), MODEL)
        prefill(machine, 0, prompt)
        alone.append([(r.emitted, r.verified, r.drafts, r.finish) for r in decode(machine, 0, forever(5))])
    machine = ProtocolMachine(ProtocolShape(), MODEL)
    seen = []
    for slot, prompt in enumerate(prompts):
        prefill(machine, slot, prompt)
        seen.append([machine.begin(slot, 5)])
    turn = 0
    while any(machine.slots[s].phase is Phase.DECODE for s in range(4)):
        turn += 1
        running = [s for s in range(4) if machine.slots[s].phase is Phase.DECODE and (turn + s) % 3]
        for r in machine.step([PAD_SLOT_ID, *reversed(running), PAD_SLOT_ID], 5 if running else 0, 5):
            seen[r.slot].append(r)
    assert [[(r.emitted, r.verified, r.drafts, r.finish) for r in rows] for rows in seen] == alone


def test_the_prompt_end_recomputes_nothing_and_an_extension_only_itself():
    machine = ProtocolMachine(ProtocolShape(page_size=4), MODEL)
    checkpoints, computed = prefill(machine, 0)
    assert computed == len(PROMPT)
    first = decode(machine, 0, forever(4))
    machine.release(0)
    assert policy.resume_position(PROMPT, [c.key for c in checkpoints]) == len(PROMPT)
    _, computed = prefill(machine, 1, restore=checkpoints[-1])
    assert computed == 0
    again = decode(machine, 1, forever(4))
    assert [(r.emitted, r.drafts) for r in again] == [(r.emitted, r.drafts) for r in first]
    longer = (*PROMPT, 4, 4)
    _, computed = prefill(machine, 2, longer, restore=checkpoints[-1])
    assert computed == 2
    assert longer + tokens_of(decode(machine, 2, forever(4))) == tuple(truth_of(longer)[0].tokens)


def test_a_finished_or_preempted_slot_goes_on_from_its_save():
    machine = ProtocolMachine(ProtocolShape(page_size=4), MODEL)
    prefill(machine, 0)
    results = [machine.begin(0, 3), *machine.step([0], 3, 3), *machine.step([0], 3, 2)]
    text = PROMPT + tokens_of(results)
    checkpoint = machine.save(0, machine.slots[0].committed_len)
    machine.release(0)
    assert checkpoint.tokens == text[:-1]
    _, computed = prefill(machine, 3, text, restore=checkpoint)
    assert computed == 1  # the last sampled token is not in the state
    assert text + tokens_of(decode(machine, 3, forever(7))) == tuple(truth_of()[0].tokens)


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_a_slot_may_be_saved_between_the_chunks_of_its_prompt(chunk):
    """The state stands at the end of the chunk: nothing is folded, and both the slot and its heir go on from there."""
    truth, _ = truth_of()
    for at in range(chunk, len(PROMPT) + 1, chunk):
        machine = ProtocolMachine(ProtocolShape(page_size=4), MODEL)
        prefill(machine, 0, PROMPT[:at], chunk=chunk)
        with pytest.raises(ProtocolError, match="outside"):
            machine.save(0, at - 1)
        checkpoint = machine.save(0, at)
        assert content(checkpoint) == (PROMPT[:at], truth.states[at], truth.conv_inputs(at), truth.hidden[at - 1])
        _, computed = prefill(machine, 1, restore=checkpoint)
        assert computed == len(PROMPT) - at
        for start, count in policy.split_chunks(at, len(PROMPT), chunk):
            machine.prefill(0, PROMPT[start : start + count])
        for slot in (0, 1):
            assert PROMPT + tokens_of(decode(machine, slot, forever(4))) == tuple(truth.tokens)


@pytest.mark.parametrize("counts", [(0,), (3,), (7, 0, 2)])
def test_a_preempted_slot_begins_again_with_the_token_and_the_drafts_it_had(counts):
    truth, _ = truth_of()
    for steps in range(8):
        machine, drafts = ProtocolMachine(ProtocolShape(page_size=4), MODEL), forever(*counts)
        prefill(machine, 0)
        seen = machine.begin(0, next(drafts))
        for _ in range(steps):
            if machine.slots[0].phase is Phase.DECODE:
                (seen,) = machine.step([0], machine.slots[0].num_drafts, next(drafts))
        if seen.finish is not None:
            break
        checkpoint = machine.save(0, seen.committed_len)
        text = truth.tokens[: seen.committed_len]
        machine.release(0)
        _, computed = prefill(machine, 2, text, restore=checkpoint)
        again = machine.begin(2, len(seen.drafts))
        assert (computed, again.emitted, again.drafts) == (0, (seen.next_token,), seen.drafts)
        rest = []
        while machine.slots[2].phase is Phase.DECODE:
            rest += machine.step([2], machine.slots[2].num_drafts, next(drafts))
        assert (*text, seen.next_token, *tokens_of(rest)) == tuple(truth.tokens)


def test_a_save_may_be_repeated_and_a_running_slot_goes_on():
    machine = ProtocolMachine(ProtocolShape(max_drafts=3), Always())
    prefill(machine, 0)
    machine.begin(0, 3)
    machine.step([0], 3, 3)
    truth, _ = truth_of(model=Always())
    start, end = machine.slots[0].state_len, machine.slots[0].committed_len
    assert (start, end) == (11, 15)
    for p in range(start, end):
        assert content(machine.save(0, p))[1:3] == (truth.states[p], truth.conv_inputs(p))
    (result,) = machine.step([0], 3, 3, emit={0: end})
    assert result.checkpoint is not None
    assert result.checkpoint.state == truth.states[end]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("position", range(1, 12))
def test_forks_of_one_checkpoint_do_not_see_each_other(position, offset):
    machine = ProtocolMachine(ProtocolShape(page_size=4, drafter_kv_offset=offset), MODEL)
    checkpoint = prefill(machine, 0)[0][position - 1]
    kept = machine.checkpoint_kv(checkpoint)
    forks = [(*PROMPT[:position], 20 + slot) for slot in (1, 2)]
    for slot, prompt in enumerate(forks, 1):
        prefill(machine, slot, prompt, restore=checkpoint)
    for slot, prompt in enumerate(forks, 1):
        truth, _ = truth_of(prompt)
        machine.begin(slot, 7)
        assert machine.snapshot(slot).drafter_kv == tuple(truth.drafter_kv[: position + 1])
        assert machine.snapshot(slot).drafts == truth.drafts(MODEL, position + 1, 7)
    assert machine.checkpoint_kv(checkpoint) == kept
    shared = machine.slots[1].page_table[0] == checkpoint.pages[0]
    assert shared == (position >= (4 if offset else 5))


@pytest.mark.parametrize("count", range(8))
def test_the_limit_cuts_anywhere(count):
    text = tuple(truth_of(limit_len=60)[0].tokens)
    for limit_len in range(len(PROMPT) + 1, 40):
        machine = ProtocolMachine(ProtocolShape(page_size=1), MODEL)
        prefill(machine, 0, limit_len=limit_len)
        results = decode(machine, 0, forever(count))
        assert PROMPT + tokens_of(results) == text[:limit_len]
        assert [r.finish for r in results] == [None] * (len(results) - 1) + ["limit"]
        s = machine.slots[0]
        assert (s.committed_len, s.next_token) == (limit_len - 1, text[limit_len - 1])
        assert len(s.page_table) <= policy.max_kv_len(limit_len, 7)


@pytest.mark.parametrize("count", range(8))
def test_a_stop_token_cuts_anywhere_and_goes_before_the_limit(count):
    prompt = tuple(range(100, 111))
    for stop in range(11, 30):
        machine = ProtocolMachine(ProtocolShape(), Always())
        prefill(machine, 0, prompt, limit_len=30, stop_tokens=frozenset({stop}))
        results = decode(machine, 0, forever(count))
        assert tokens_of(results) == tuple(range(11, stop + 1))
        assert results[-1].finish == "stop"
        assert machine.slots[0].next_token == stop
        assert machine.slots[0].committed_len == stop
        assert machine.save(0, stop).tokens == prompt + tuple(range(11, stop))


def test_every_acceptance_of_every_k_with_supplied_tokens():
    for count in range(8):
        for accepted in range(count + 1):
            machine = ProtocolMachine(ProtocolShape())
            prefill(machine, 0)
            drafts = tuple(range(100, 100 + count))
            machine.begin(0, count, Supplied((99,), drafts))
            targets = (*drafts[:accepted], *range(200, 201 + count - accepted))
            (r,) = machine.step([0], count, 2, supplied={0: Supplied(targets, (1, 2))})
            assert (r.num_accepted, r.emitted) == (accepted + 1, targets[: accepted + 1])
            assert r.accepted_drafts == accepted
            assert (r.state_len, r.committed_len, r.next_token) == (11, 12 + accepted, targets[accepted])
            assert r.drafts == (1, 2)
            assert r.drafter_rows == tuple(range(11, 13 + accepted))


def test_a_machine_fed_with_an_engines_tokens_predicts_it():
    engine, oracle = (ProtocolMachine(ProtocolShape(page_size=4), m) for m in (MODEL, None))
    for machine in (engine, oracle):
        prefill(machine, 2, chunk=5)
    seen = engine.begin(2, 6)
    assert oracle.begin(2, 6, Supplied(seen.emitted, seen.drafts)) == seen
    while seen.finish is None:
        at = engine.slots[2].committed_len
        (seen,) = engine.step([2], 6, 6, emit={2: at})
        supplied = {2: Supplied(seen.emitted, seen.drafts)}
        assert oracle.step([2], 6, 6, emit={2: at}, supplied=supplied) == [seen]
        assert oracle.snapshot(2) == engine.snapshot(2)


def test_emission_outside_the_window_does_not_happen():
    machine = ProtocolMachine(ProtocolShape(max_drafts=2), MODEL)
    prefill(machine, 0)
    machine.begin(0, 2)
    for past in (False, True):
        slot = machine.slots[0]
        at = slot.committed_len + 1 if past else slot.state_len - 1
        (r,) = machine.step([0], 2, 2, emit={0: at})
        assert r.checkpoint is None


def test_what_is_folded_already_can_still_be_emitted():
    """At state_len: a slot that leaves before its next step saves the states as they are, in the same way."""
    machine = ProtocolMachine(ProtocolShape(max_drafts=2), MODEL)
    prefill(machine, 0)
    machine.begin(0, 2)
    at = machine.slots[0].state_len
    saved = machine.save(0, at)
    (r,) = machine.step([0], 2, 2, emit={0: at})
    assert r.checkpoint is not None and r.checkpoint.position == at
    assert (r.checkpoint.state, r.checkpoint.conv_inputs, r.checkpoint.h_last) == (
        (saved.state, saved.conv_inputs, saved.h_last)
    )


def test_misuse_is_refused():
    machine = ProtocolMachine(ProtocolShape(max_drafts=2), MODEL)
    with pytest.raises(ProtocolError, match="expected"):
        machine.prefill(0, PROMPT)
    machine.admit(0, 13)
    with pytest.raises(ProtocolError, match="cannot begin"):
        machine.begin(0, 1)
    with pytest.raises(ProtocolError, match="not allowed"):
        machine.prefill(0, range(13))
    machine.prefill(0, PROMPT)
    with pytest.raises(ProtocolError, match="expected"):
        machine.step([0], 0, 0)
    machine.begin(0, 1)
    with pytest.raises(ProtocolError, match="has 1 drafts"):
        machine.step([0], 2, 0)
    with pytest.raises(ProtocolError, match="two seats"):
        machine.step([0, 0], 0, 0)
    with pytest.raises(ProtocolError, match="outside"):
        machine.step([4], 0, 0)
    with pytest.raises(ProtocolError, match="outside"):
        machine.save(0, 12)
    with pytest.raises(ProtocolError, match="without a model"):
        ProtocolMachine(ProtocolShape())._target_token(0, 0, None, 0)


# Policy


def test_retained_always_keeps_the_prompt_end():
    for prompt_len in range(1, 40):
        for page_size in (1, 4, 16):
            for interval in (None, 0, 1, 6, 16, 100):
                kept = policy.retained(prompt_len, interval, page_size)
                assert prompt_len in kept
                assert all(p % (interval or page_size) == 0 for p in kept if p != prompt_len)
                assert (len(kept) == 1) or interval != 0
                longer = policy.retained(prompt_len, interval, page_size, length=prompt_len + 9, finished=True)
                assert set(kept) <= set(longer)
                assert longer[-1] == prompt_len + 9


def test_retained_by_example():
    assert policy.retained(13, None, 4) == (4, 8, 12, 13)
    assert policy.retained(13, 0, 4) == (13,)
    assert policy.retained(13, 8, 4) == (8, 13)
    assert policy.retained(13, 6, 4) == (6, 12, 13)
    assert policy.retained(5, 1, 4) == (1, 2, 3, 4, 5)
    assert policy.retained(13, 0, 4, length=20, points=(5, 19, 21)) == (5, 13, 19)


def test_at_most_one_grid_position_is_due_if_a_page_holds_a_verify_pass():
    for page_size in range(8, 20):
        for start in range(60):
            grid = policy.retained(1, None, page_size, length=100)[1:]
            assert len(policy.due(start, start + 8, grid)) <= 1
    assert policy.due(4, 8, (4, 5, 8, 9)) == (5, 8)
    assert policy.next_emission(4, 8, (4, 8, 9)) == 8
    assert policy.next_emission(4, 8, (4, 9)) is None


def test_chunks_cover_the_prompt_once():
    for start in range(5):
        for end in range(start, 30):
            for chunk in (1, 3, 7, 64):
                chunks = policy.split_chunks(start, end, chunk)
                assert [p for at, n in chunks for p in range(at, at + n)] == list(range(start, end))
                assert all(n == chunk for (_, n), _ in pairwise(chunks))
    assert policy.row_checkpoints(4, 3, (4, 6, 7, 8)) == (None, 6, 7)


def test_lookup_wants_the_exact_position_and_the_equal_hash():
    text = (5, 6, 7, 8)
    keys = [(p, policy.token_hash(text[:p])) for p in (1, 3, 4)]
    assert policy.prefix_hashes(text) == [policy.token_hash(text[:p]) for p in range(5)]
    assert policy.resume_position(text, keys) == 4
    assert policy.resume_position((5, 6, 7, 9, 9), keys) == 3
    assert policy.resume_position((5, 6), keys) == 1
    assert policy.resume_position((6,), keys) == 0
    assert policy.resume_position(text, [(2, policy.token_hash(text[:3]))]) == 0


def test_import_needs_no_torch():
    probe = "import sys, dsl.reference.protocol.fuzz; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_command_line(capsys):
    assert main(["fuzz", "--traces", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traces"] == 3
    assert main(["fuzz", "--traces", "1", "--seed", "9"]) == 0
    assert "agree everywhere" in capsys.readouterr().out


@pytest.mark.parametrize("points", [(), (5,), (1, 13, 33), (40, 8, 59)])
@pytest.mark.parametrize("interval", [None, 0, 1, 6, 16])
def test_the_runtime_keeps_what_the_policy_keeps(interval, points):
    """Grid, prompt end, junctions and positions asked for, and the end of a finished answer; also piece by piece."""
    for prompt_len in range(1, 40):
        for page_size in (8, 16):
            for end in range(prompt_len, prompt_len + 20):
                expected = policy.retained(prompt_len, interval, page_size, length=end, points=points)
                assert tuple(runtime_retained(prompt_len, interval, page_size, end, points=points)) == expected
                expected = policy.retained(prompt_len, interval, page_size, length=end, finished=True, points=points)
                finished = runtime_retained(prompt_len, interval, page_size, end, prompt_len // 2, (*points, end))
                assert tuple(finished) == tuple(p for p in expected if p > prompt_len // 2)


@pytest.mark.parametrize("points", [(), (5, 41, 43), (60,)])
@pytest.mark.parametrize("interval", [None, 0, 1, 6, 16])
def test_the_runtime_waits_for_the_position_that_is_due_next(interval, points):
    """`next_retained` against `due`, while a slot decodes in steps of up to eight tokens."""
    for position in range(21, 70):
        due = policy.due(position, 90, policy.retained(21, interval, 8, length=90, points=points))
        assert next_retained(interval, 8, position, points) == (due[0] if due else NEVER)
