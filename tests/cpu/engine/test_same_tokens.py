"""The tokens of an answer depend on prompt, seed and weights only: every way of computing them equals the cold one."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from runtime import buffers, executor
from runtime.engine import Engine
from runtime.graphs import record
from tests.cpu.engine.toys import Ask, check_nothing_left, drain, draw_ask, poison_free, with_interval

PROMPT = tuple(b"the quick brown fox jumps over the lazy dog")
ASKS = (
    Ask(PROMPT, 40),
    Ask(PROMPT, 40, temperature=0.9, seed=3),
    Ask(PROMPT[:1], 17, temperature=1.1, seed=4),
    Ask(PROMPT[:16], 60, temperature=0.6, seed=-5, stop_tokens=(7, 70, 71)),
)


def answers(engine, asks):
    requests = [ask.submit(engine) for ask in asks]
    drain(engine, poison=True)
    return [(request.output, request.finish_reason) for request in requests]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_drafts_graph_and_batch_do_not_change_tokens(package, weights, oracle, drafts, eager):
    with Engine(package, weights, drafts=drafts, eager=eager) as engine:
        assert answers(engine, ASKS) == [oracle(ask) for ask in ASKS]
        if drafts:
            assert engine.stats().tokens_per_step > 1.2, (
                "the toy's drafter should be right often enough to test accepts"
            )


@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
@pytest.mark.parametrize("drafts", [0, 3])
def test_chunks_do_not_change_tokens(package, weights, oracle, chunk, drafts):
    with Engine(package, weights, drafts=drafts, drafting=True, prefill_chunk=chunk, slots=1) as engine:
        assert answers(engine, ASKS) == [oracle(ask) for ask in ASKS]


@pytest.mark.parametrize("seed", range(12))
def test_traffic_of_any_kind_does_not_change_tokens(package, weights, oracle, seed):
    """Requests come, extend each other, are preempted, cancelled, K changes every step, free memory is poisoned.

    Odd seeds have so few checkpoint rows that most of what is kept is in the host pool, or gone.
    """
    rng = Random(seed)
    package = with_interval(package, rng.choice((None, 0, 1, 3, 8, 13)))
    slots, chunk = rng.randint(1, 4), rng.choice((1, 3, 7, 16))
    if seed % 2:
        limits = dataclasses.replace(package.plan.limits, checkpoint_slots=4)
        package = dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))
    options = {"host_pool": rng.choice((0, 100_000)), "prefill_budget": rng.choice((None, None, 5, 20))}
    engine = Engine(package, weights, drafts=3, eager=seed % 4 == 0, slots=slots, prefill_chunk=chunk, **options)
    asks, requests = [], []
    while len(asks) < 10 or engine.busy:
        if len(asks) < 10 and rng.random() < 0.3:
            heads = [tuple(request.tokens[: rng.randint(1, len(request.tokens))]) for request in requests]
            heads += [ask.prompt for ask in asks]
            asks.append(draw_ask(rng, heads=heads))
            requests.append(asks[-1].submit(engine))
        if rng.random() < 0.3:
            engine.set_drafts(rng.randint(0, 7))
        if rng.random() < 0.02 and requests:
            engine.cancel(rng.choice(requests))
        if rng.random() < 0.1 and engine.scheduler.seats.active:
            engine.preempt(rng.choice(engine.scheduler.seats.all()).request)
        poison_free(engine)
        engine.step()
    for ask, request in zip(asks, requests, strict=True):
        output, reason = oracle(ask)
        if request.finish_reason == "cancelled":
            assert request.output == output[: len(request.output)]
        else:
            assert (request.output, request.finish_reason) == (output, reason)
        begun = 1 if request.output else 0
        accepted = sum(count for count, _ in request.acceptance())
        assert accepted + request.steps + begun == len(request.output)
    assert engine.scheduler.seats.active == 0
    check_nothing_left(engine)


def test_acceptance_is_the_same_in_every_bucket(package, weights):
    """Right output hides a broken drafter: what is drafted and accepted must not depend on batch, bucket or graph."""
    seen = []
    for slots, eager in ((1, True), (1, False), (2, False), (3, False), (4, False)):
        with Engine(package, weights, drafts=5, slots=slots, eager=eager, checkpoints=False) as engine:
            requests = [ask.submit(engine) for ask in ASKS]
            drain(engine)
            seen.append([request.accepted for request in requests])
    assert all(accepted == seen[0] for accepted in seen)


def test_a_step_verifies_what_the_one_before_drafted(package, weights):
    rng = Random(1)
    with Engine(package, weights, drafts=3) as engine:
        request = Ask(PROMPT[:10], 60, temperature=1.0).submit(engine)
        seen, drafted = {}, 3  # the first step also prefills and begins, with the drafts asked for then
        while not request.finished:
            drafts = engine.scheduler.drafts
            engine.step()
            counts = {verified: sum(by_accepted) for verified, by_accepted in request.accepted.items()}
            assert [verified for verified, count in counts.items() if count > seen.get(verified, 0)] == [drafted]
            seen, drafted = counts, drafts
            engine.set_drafts(rng.randint(0, 7))


def test_stop_tokens_leave_with_their_request(package, weights):
    """A stale stop token would cut steps short: the output stays right, the acceptance does not."""
    ask = Ask(PROMPT, 40, temperature=1.0, seed=2)
    with Engine(package, weights, drafts=7, checkpoints=False, slots=1) as engine:
        fresh = ask.submit(engine)
        drain(engine)
        stops = tuple(dict.fromkeys(fresh.output))[:7]
        Ask(PROMPT, 1, stop_tokens=stops).submit(engine)
        again = ask.submit(engine)
        drain(engine)
    assert again.accepted == fresh.accepted and max(map(len, fresh.accepted.values())) == 9


def test_a_device_apart_from_the_host_gives_the_same(package, weights, oracle, monkeypatch):
    """As on CUDA: the host writes a mirror that is sent and fetched, and recording a graph runs it once before."""
    captured = []

    def run_then_record(run, scope, device, eager):
        with scope():
            run()
        captured.append(run)
        return record(run, scope, device, eager)

    monkeypatch.setattr(buffers, "mirrored", lambda _: True)
    monkeypatch.setattr(executor, "record", run_then_record)
    rng = Random(8)
    engine = Engine(with_interval(package, 3), weights, drafts=3, prefill_chunk=7)
    assert not engine.buffers.host.shared
    asks = [*ASKS, *ASKS[::-1], *(draw_ask(rng, heads=[ASKS[0].prompt]) for _ in range(4))]
    requests = [ask.submit(engine) for ask in asks]
    while engine.busy:
        engine.set_drafts(rng.randint(0, 7))
        poison_free(engine)
        engine.step()
    assert len(captured) > 20
    for ask, request in zip(asks, requests, strict=True):
        assert (request.output, request.finish_reason) == oracle(ask)
    assert engine.stats().checkpoint_counts.restored >= 4
