"""What is published, what it holds, and what resuming from it costs and gives."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from runtime.checkpoints.checkpoint import Reason
from runtime.checkpoints.retention import prefix_digests, retained
from runtime.engine import Engine
from tests.cpu.engine.toys import (
    Ask,
    checkpoint_parts,
    drain,
    draw_ask,
    kv_entries,
    live_parts,
    poison_free,
    same_bits,
    with_interval,
)

PROMPT = tuple(b"jackdaws love my big sphinx of quartz")


def tokens_of(checkpoint, requests):
    """The prefix a checkpoint stands for."""
    for request in requests:
        if (checkpoint.position, checkpoint.digest) in prefix_digests(request.tokens, [checkpoint.position]):
            return request.tokens[: checkpoint.position]
    raise AssertionError(f"no request has the prefix of the checkpoint at {checkpoint.position}")


def check_cold(oracle, engine, checkpoint, tokens):
    """Every part of a checkpoint equals the cold engine's live state after the same tokens, bit for bit."""
    position, drafting = checkpoint.position, engine.scheduler.executor.drafting
    with oracle.engine(drafting) as cold:
        Ask(tuple(tokens), 3).submit(cold)  # a step after the prompt folds nothing further yet
        while cold.scheduler.queue or cold.scheduler.seats.all()[0].committed_len < position:
            cold.step()
        [seat] = cold.scheduler.seats.all()
        assert seat.state_len == position
        for (name, live), (other, kept) in zip(
            live_parts(cold, seat.slot, position), checkpoint_parts(engine, checkpoint), strict=True
        ):
            assert name == other and same_bits(live, kept), f"{name} at {position}"
        for name in engine.package.plan.kv_buffers:
            drafter = name.startswith("mtp")
            count = (position - 1 if drafting else 0) if drafter else position
            mine, theirs = kv_entries(engine, name, checkpoint.pages, count), kv_entries(cold, name, seat.pages, count)
            assert same_bits(mine, theirs), f"{name} at {position}"


@pytest.mark.parametrize(
    ("interval", "drafts", "chunk", "eager"),
    [(8, 3, 16, False), (None, 0, 16, False), (5, 7, 3, False), (1, 2, 7, False), (13, 7, 16, True)],
)
def test_published_states_are_the_cold_ones(package, weights, oracle, interval, drafts, chunk, eager):
    package = with_interval(package, interval)
    engine = Engine(package, weights, drafts=drafts, prefill_chunk=chunk, eager=eager)
    requests = [
        Ask(PROMPT[:21], 20, temperature=0.8, seed=1).submit(engine),
        Ask(PROMPT[:9], 14).submit(engine),
        Ask(PROMPT, 9, temperature=1.0, seed=2).submit(engine),
    ]
    while engine.busy:
        poison_free(engine)
        engine.step()
    store = engine.scheduler.cache
    limits = package.plan.limits
    for checkpoint in store:
        check_cold(oracle, engine, checkpoint, tokens_of(checkpoint, requests))
    wanted = set()
    for request in requests:
        end = len(request.tokens) - 1  # of the answer: its last token was sampled, not processed
        positions = retained(request.prompt_len, interval, limits.page_size, end, points=[end])
        wanted |= set(prefix_digests(request.tokens, positions))
    published = {checkpoint.key for checkpoint in store}
    assert published <= wanted
    if len(wanted) <= limits.checkpoint_slots:
        assert published == wanted
        assert {request.prompt_key for request in requests} <= published
    else:
        assert len(published) == limits.checkpoint_slots


@pytest.mark.parametrize("interval", [None, 0, 8, 11])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 37])
def test_the_same_prompt_recomputes_nothing(package, weights, oracle, interval, drafts, length):
    with Engine(with_interval(package, interval), weights, drafts=drafts) as engine:
        first, second = Ask(PROMPT[:length], 12), Ask(PROMPT[:length], 12, temperature=0.9, seed=8)
        longer = Ask((*PROMPT[:length], 1, 2, 3), 12)
        outputs = []
        for ask, restored in ((first, 0), (first, length), (second, length), (longer, length)):
            before = engine.stats().prefilled_tokens
            request = ask.submit(engine)
            drain(engine, poison=True)
            assert request.restored_position == restored
            assert engine.stats().prefilled_tokens - before == len(ask.prompt) - restored
            assert request.recomputed_tokens == 0
            assert (request.output, request.finish_reason) == oracle(ask)
            outputs.append(request.accepted)
        assert outputs[0] == outputs[1], "a resumed drafter proposes what the first one did"


@pytest.mark.parametrize("interval", [None, 0, 8])
@pytest.mark.parametrize("drafts", [0, 3, 7])
@pytest.mark.parametrize("new_tokens", [1, 2, 29, 30])
def test_conversation_resumes_from_the_end_of_the_answer(package, weights, oracle, interval, drafts, new_tokens):
    with Engine(with_interval(package, interval), weights, drafts=drafts) as engine:
        first = engine.generate(list(PROMPT[:20]), max_new_tokens=new_tokens)
        processed = 20 + len(first.tokens) - 1
        end = engine.scheduler.cache.find(first.request.tokens)
        assert end.position == processed
        assert (Reason.ANSWER_END if new_tokens > 1 else Reason.PROMPT_END) in end.reasons
        check_cold(oracle, engine, end, first.request.tokens[:processed])
        follow = Ask((*PROMPT[:20], *first.tokens, 65, 66, 67), 20)
        request = follow.submit(engine)
        drain(engine, poison=True)
        assert (request.restored_position, request.recomputed_tokens) == (processed, 0)
        assert (request.output, request.finish_reason) == oracle(follow)


def test_an_answer_that_a_stop_token_ends_is_kept_to_its_end(package, weights, oracle):
    free, _ = oracle(Ask(PROMPT, 30, temperature=1.2, seed=9))
    ask = Ask(PROMPT, 30, temperature=1.2, seed=9, stop_tokens=(free[6],))
    with Engine(with_interval(package, 0), weights, drafts=7) as engine:
        request = ask.submit(engine)
        drain(engine)
        assert request.finish_reason == "stop"
        processed = len(request.tokens) - 1
        assert [checkpoint.position for checkpoint in engine.scheduler.cache] == [len(PROMPT), processed]
        check_cold(oracle, engine, engine.scheduler.cache.find(request.tokens), request.tokens[:processed])


def test_nothing_of_a_cancelled_answer_is_kept(package, weights):
    with Engine(with_interval(package, 0), weights, drafts=3) as engine:
        request = Ask(PROMPT, 30).submit(engine)
        while request.steps < 3:
            engine.step()
        engine.cancel(request)
        assert [checkpoint.position for checkpoint in engine.scheduler.cache] == [len(PROMPT)]


def test_checkpoints_do_not_change_while_others_resume_from_them(package, weights):
    rng = Random(5)
    with Engine(with_interval(package, 8), weights, drafts=7) as engine:
        Ask(PROMPT, 30).submit(engine)
        drain(engine)

        def snapshot(checkpoint):
            parts = [part.clone() for _, part in checkpoint_parts(engine, checkpoint)]
            for name in engine.package.plan.kv_buffers:
                count = checkpoint.position - name.startswith("mtp")
                parts.append(kv_entries(engine, name, checkpoint.pages, count))
            return parts

        before = {checkpoint.key: snapshot(checkpoint) for checkpoint in engine.scheduler.cache}
        for cut in (8, 16, 37, 24, 37, 37):
            draw = draw_ask(rng, 20)
            Ask(PROMPT[:cut] + draw.prompt[: rng.randint(0, 9)], 8, draw.temperature, draw.seed).submit(engine)
        drain(engine, poison=True)
        after = {checkpoint.key: snapshot(checkpoint) for checkpoint in engine.scheduler.cache}
        for key in set(before) & set(after):
            assert all(same_bits(a, b) for a, b in zip(before[key], after[key], strict=True)), key[0]
        assert engine.stats().checkpoint_counts.restored == 6


def test_a_checkpoint_of_other_numerics_or_tokens_is_not_restored(package, weights, oracle):
    ask = Ask(PROMPT, 8)
    for name, value in (("stamp", "other"), ("digest", b"0" * 16), ("drafting", False)):
        with Engine(package, weights, drafts=3) as engine:
            ask.submit(engine)
            drain(engine)
            cache = engine.scheduler.cache
            for checkpoint in cache.all():
                setattr(checkpoint, name, value)
            refused = [checkpoint.position for checkpoint in cache if checkpoint.position <= len(PROMPT)]
            request = ask.submit(engine)
            drain(engine)
            assert request.restored_position == 0
            assert cache.counts.mismatched == len(refused) == 5
            assert (request.output, request.finish_reason) == oracle(ask)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_checkpoint_that_does_not_match_makes_room_for_the_next_one(package, weights, oracle, cut):
    """A prompt on a path with several checkpoints resumes from the deepest one that is sound."""
    ask = Ask(PROMPT, 8)
    with Engine(with_interval(package, 8), weights, drafts=3) as engine:
        ask.submit(engine)
        drain(engine)
        path = list(engine.scheduler.cache.candidates(PROMPT))
        assert [checkpoint.position for checkpoint in path] == [37, 32, 24, 16, 8]
        for checkpoint in path[:cut]:
            checkpoint.stamp = "other"
        request = ask.submit(engine)
        drain(engine, poison=True)
        assert request.restored_position == path[cut].position
        assert request.recomputed_tokens == len(PROMPT) - path[cut].position
        assert engine.scheduler.cache.counts.mismatched == cut
        assert (request.output, request.finish_reason) == oracle(ask)


def test_recomputed_tokens_are_counted(package, weights):
    with Engine(with_interval(package, 0), weights, drafts=0) as engine:
        engine.generate(list(PROMPT), max_new_tokens=1)
        follow = engine.generate([*PROMPT[:30], 1, 2], max_new_tokens=1).request
        assert (follow.restored_position, follow.recomputed_tokens) == (0, 30)
        assert engine.stats().recomputed_tokens == 30
        third = engine.generate([*PROMPT[:30], 3, 4, 5], max_new_tokens=1).request
        assert (third.restored_position, third.recomputed_tokens) == (30, 0)  # where the second one left the first
        assert (third.prefilled_tokens, engine.stats().recomputed_tokens) == (3, 30)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("shared", [2, 7, 8, 9, 16, 21, 26, 31])
def test_where_a_prompt_leaves_a_known_text_is_kept(package, weights, oracle, shared, drafts):
    """With nothing on a grid: prompt ends, answer ends and junctions, also one inside an earlier answer."""
    with Engine(with_interval(package, 0), weights, drafts=drafts, prefill_chunk=5) as engine:
        first = Ask((*PROMPT[:20], 7), 12)
        text = [*first.prompt, *oracle(first)[0][:-1]]
        first.submit(engine)
        drain(engine)
        Ask((*text[:shared], (text[shared] + 1) % 256, 9, 9), 3).submit(engine)
        drain(engine)
        kept = {c.position: c for c in engine.scheduler.cache if [*c.tokens[: c.position]] == text[: c.position]}
        assert sorted(kept) == sorted({shared, len(first.prompt), len(text)})
        assert (Reason.JUNCTION in kept[shared].reasons) == (shared != len(first.prompt))
        check_cold(oracle, engine, kept[shared], text[:shared])
        other = Ask((*text[:shared], (text[shared] + 2) % 256), 3)
        request = other.submit(engine)
        drain(engine, poison=True)
        assert (request.restored_position, request.prefilled_tokens, request.recomputed_tokens) == (shared, 1, 0)
        assert (request.output, request.finish_reason) == oracle(other)


@pytest.mark.parametrize("asked", [(5,), (-1, -9, 100), (37, 1, 44), (-37, -40, 60)])
def test_positions_that_were_asked_for_are_kept(package, weights, oracle, asked):
    with Engine(with_interval(package, 0), weights, drafts=3, prefill_chunk=7) as engine:
        request = engine.submit(list(PROMPT), max_new_tokens=12, stop_at_eos=False, checkpoints=asked)
        drain(engine)
        end = len(PROMPT) + 11
        absolute = {n if n > 0 else len(PROMPT) + n for n in asked}
        wanted = {len(PROMPT), end} | {n for n in absolute if 0 < n <= end}
        assert {checkpoint.position for checkpoint in engine.scheduler.cache} == wanted
        for checkpoint in engine.scheduler.cache:
            assert (Reason.ASKED in checkpoint.reasons) == (checkpoint.position in absolute)
            check_cold(oracle, engine, checkpoint, request.tokens[: checkpoint.position])


def test_a_full_pool_keeps_the_prompt_end(package, weights):
    limits = dataclasses.replace(package.plan.limits, checkpoint_interval=1, checkpoint_slots=2)
    small = dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))
    with Engine(small, weights, drafts=3) as engine:
        for prompt in (PROMPT, PROMPT[:5], PROMPT[3:]):
            engine.generate(list(prompt), max_new_tokens=25)
            again = engine.generate(list(prompt), max_new_tokens=2)
            assert again.request.restored_position == len(prompt)
        assert len(engine.scheduler.cache) <= 2


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_the_prompt_end_is_kept_beside_pinned_ones(package, weights, slots):
    """More positions are due than there are rows to be had: the deepest ones get them."""
    limits = dataclasses.replace(package.plan.limits, checkpoint_interval=2, checkpoint_slots=slots)
    small = dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))
    with Engine(small, weights, drafts=3) as engine:
        pinned = list(b"sphinx")
        engine.generate(pinned, max_new_tokens=1)
        assert engine.cache.pin(pinned) == len(pinned)
        for prompt in (PROMPT[:15], PROMPT, PROMPT[2:9]):
            engine.generate(list(prompt), max_new_tokens=1)
            assert engine.cache.find(list(prompt)) == len(prompt)
        assert engine.cache.find(pinned) == len(pinned)


def test_pages_of_checkpoints_give_way_to_requests(package, weights, oracle):
    """As few pages as one slot needs, and checkpoints hold them all: requests still get theirs."""
    limits = dataclasses.replace(
        package.plan.limits, num_pages=2 * package.plan.limits.pages_per_slot, checkpoint_interval=None
    )
    small = dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))
    rng = Random(2)
    with Engine(small, weights, drafts=3, slots=1) as engine:
        for seed in range(8):
            prompt = tuple(rng.randrange(256) for _ in range(60))
            ask = Ask(prompt, 40, temperature=1.0, seed=seed)
            request = ask.submit(engine)
            drain(engine, poison=True)
            assert (request.output, request.finish_reason) == oracle(ask)
        assert engine.stats().checkpoint_counts.evicted > 0


def test_equal_requests_side_by_side_publish_once(package, weights, oracle):
    ask = Ask(PROMPT, 30)
    with Engine(with_interval(package, 8), weights, drafts=3) as engine:
        requests = [ask.submit(engine) for _ in range(4)]
        drain(engine)
        assert all((request.output, request.finish_reason) == oracle(ask) for request in requests)
        positions = sorted(checkpoint.position for checkpoint in engine.scheduler.cache)
        end = len(PROMPT) + 29
        assert positions == retained(len(PROMPT), 8, 8, end, points=[end])
        free = engine.scheduler.cache.free_rows()
        assert len(free) == engine.package.plan.limits.checkpoint_slots - len(positions)
