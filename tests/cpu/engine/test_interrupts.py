"""Whatever is raised inside a step, the engine stays right: nothing wrong is published, later answers are cold ones."""

from __future__ import annotations

import dataclasses
import itertools
from operator import attrgetter

import pytest

from runtime import errors
from runtime.engine import Engine
from tests.cpu.engine.toys import Ask, check_nothing_left, drain, poison_free, with_interval

PROMPTS = tuple(tuple(text) for text in (b"sphinx of black quartz, judge my vow", b"how vexingly quick", b"waltz"))
ASKS = [Ask(prompt, 14, temperature=0.9, seed=seed) for seed, prompt in enumerate((*PROMPTS, PROMPTS[0][:20]))]

BOOKKEEPING = (
    *("seats.leave", "seats.admit", "seats.begin_decoding", "queue.admit", "cache.pages.drop", "cache.pages.take"),
    *("cache.publish", "cache.reserve", "cache.learn", "cache.justify", "cache.tree.node_at", "emitter.save"),
    *("roster.finish", "_accept", "admission.leave", "admission.seat", "_abandon"),
)
TIERING = (
    *("tiers.demote", "tiers.bring", "tiers.device.load", "tiers.device.image", "tiers.host.put", "tiers.host.drop"),
    *("cache.evict", "cache._vacate", "cache.lost_copy", "cache.shareable", "cache.publish", "cache.take_page"),
)
TURNS = (
    "emitter.hold",
    "cache.hold",
    "cache.drop",
    "seats.leave",
    "queue.push_front",
    "admission.leave",
    "executor.save",
)


def raise_at(engine: Engine, monkeypatch, owner: object, name: str, number: int, after: bool = True) -> None:
    """The `number`-th call of owner.name from now on raises KeyboardInterrupt, after it has done its work or before."""
    method, calls = getattr(owner, name), itertools.count(1)

    def interrupted(*arguments, **options):
        stop = next(calls) == number
        if stop and not after:
            raise KeyboardInterrupt
        result = method(*arguments, **options)
        if stop:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, interrupted)


def raise_in(engine: Engine, monkeypatch, path: str, number: int, after: bool) -> None:
    """The same of a part of the scheduler, by its path."""
    part, _, name = path.rpartition(".")
    raise_at(engine, monkeypatch, attrgetter(part)(engine.scheduler) if part else engine.scheduler, name, number, after)


def check_right(engine: Engine, oracle, asks=ASKS) -> None:
    """Nothing is left behind, and answers equal those of a cold engine, twice: the second time from checkpoints."""
    check_nothing_left(engine)
    for _ in range(2):
        for ask in asks:
            poison_free(engine)
            request = ask.submit(engine)
            drain(engine)
            assert (request.output, request.finish_reason) == oracle(ask)
    for request in [ask.submit(engine) for ask in asks]:
        drain(engine, poison=True)
        assert request.finish_reason in ("stop", "limit")


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 8, 11])
@pytest.mark.parametrize("warm", [False, True])
def test_an_interrupted_replay_leaves_no_trace(package, weights, oracle, monkeypatch, number, warm):
    with Engine(with_interval(package, 4), weights, drafts=3) as engine:
        if warm:  # prompts are restored then
            engine.generate(list(PROMPTS[0][:20]), max_new_tokens=12)
        with monkeypatch.context() as patch:
            raise_at(engine, patch, engine.scheduler.executor, "replay", number)
            requests = [ask.submit(engine) for ask in ASKS]
            with pytest.raises(KeyboardInterrupt):
                drain(engine)
        drain(engine)  # a restore is a replay too: those that had no slot yet wait on
        assert all(request.finished for request in requests)
        assert "error" in {request.finish_reason for request in requests}
        check_right(engine, oracle)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["prefill", "begin", "save", "restore", "admit", "arm", "disarm"])
def test_every_phase_may_be_interrupted(package, weights, oracle, monkeypatch, where, after):
    with Engine(with_interval(package, 1), weights, drafts=3) as engine:
        engine.generate(list(PROMPTS[0]), max_new_tokens=4)
        with monkeypatch.context() as patch:
            raise_at(engine, patch, engine.scheduler.executor, where, 2 if where in ("save", "arm") else 1, after)
            for ask in (ASKS[0], ASKS[1]):
                ask.submit(engine)
            with pytest.raises(KeyboardInterrupt):
                drain(engine)
        drain(engine)
        check_right(engine, oracle)


@pytest.mark.parametrize("path", BOOKKEEPING)
@pytest.mark.parametrize("after", [False, True])
def test_bookkeeping_may_be_interrupted(package, weights, oracle, monkeypatch, path, after):
    with Engine(with_interval(package, 4), weights, drafts=3) as engine:
        scheduler = engine.scheduler
        with monkeypatch.context() as patch:
            if path == "_abandon":
                raise_at(engine, patch, scheduler.executor, "replay", 4)
            raise_in(engine, patch, path, 1, after)
            requests = [ask.submit(engine) for ask in ASKS]
            with pytest.raises(KeyboardInterrupt):
                drain(engine)
        drain(engine)
        assert all(request.finished for request in requests)
        if engine.scheduler._midway:
            engine.scheduler._abandon()
        check_right(engine, oracle, ASKS[:2])


def few_rows(package, rows=3):
    """The same package with a pool that is soon full."""
    limits = dataclasses.replace(package.plan.limits, checkpoint_slots=rows, checkpoint_interval=4)
    return dataclasses.replace(package, plan=dataclasses.replace(package.plan, limits=limits))


@pytest.mark.parametrize("path", TIERING)
@pytest.mark.parametrize("after", [False, True])
def test_moving_between_tiers_may_be_interrupted(package, weights, oracle, monkeypatch, path, after):
    with Engine(few_rows(package), weights, drafts=3, host_pool=100_000) as engine:
        for ask in ASKS[:2]:
            ask.submit(engine)
            drain(engine)
        assert engine.scheduler.cache.counts.demoted > 0
        with monkeypatch.context() as patch:
            raise_in(engine, patch, path, 1, after)
            with pytest.raises(KeyboardInterrupt):
                for ask in (*ASKS[:2], *ASKS):
                    ask.submit(engine)
                    drain(engine)
        drain(engine)
        if engine.scheduler._midway:
            engine.scheduler._abandon()
        check_right(engine, oracle, ASKS[:2])
        check_nothing_left(engine)


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("after", [False, True])
def test_a_preemption_may_be_interrupted(package, weights, oracle, monkeypatch, path, after):
    """By hand between steps, where what runs is ended by the next call; those that wait go on."""
    with Engine(with_interval(package, 4), weights, drafts=3, slots=2) as engine:
        requests = [ask.submit(engine) for ask in ASKS]
        while requests[0].steps < 2:
            engine.step()
        with monkeypatch.context() as patch:
            raise_in(engine, patch, path, 1, after)
            with pytest.raises(KeyboardInterrupt):
                engine.preempt(requests[0])
                drain(engine)
        drain(engine)
        for ask, request in zip(ASKS, requests, strict=True):
            answer, reason = oracle(ask)
            assert request.output == answer if request.finish_reason == reason else request.finish_reason == "error"
        assert requests[-1].finish_reason != "error"
        check_right(engine, oracle, ASKS[:2])


def test_generate_takes_its_own_requests_along_and_leaves_others(package, weights, oracle, monkeypatch):
    with Engine(package, weights, drafts=3, slots=1) as engine:
        other = ASKS[0].submit(engine)
        with monkeypatch.context() as patch:
            raise_at(engine, patch, engine.scheduler.executor, "replay", 5)
            with pytest.raises(KeyboardInterrupt):
                engine.generate_batch([list(prompt) for prompt in PROMPTS], max_new_tokens=8)
        assert other.finish_reason == "error" and not engine.busy
        check_right(engine, oracle)
        other = ASKS[0].submit(engine)
        for prompts in ([[1], [2], []], [[1], None], [[1], [2], [9999]]):
            with pytest.raises(errors.RuntimeStateError):
                engine.generate_batch(prompts)
            assert list(engine.scheduler.queue) == [other]
        drain(engine)
        assert (other.output, other.finish_reason) == oracle(ASKS[0])


@pytest.mark.parametrize("count", [0, -3, 5, 1 << 20])
def test_a_count_no_step_can_have_is_refused_with_its_slot(package, weights, oracle, monkeypatch, count):
    with Engine(package, weights, drafts=3) as engine:
        executor = engine.scheduler.executor
        request = ASKS[0].submit(engine)
        while request.steps < 1:
            engine.step()
        with monkeypatch.context() as patch:
            replay = executor.replay

            def lying(graph):
                replay(graph)
                for slot in range(4):
                    executor.views["num_accepted"][slot] = count

            patch.setattr(executor, "replay", lying)
            with pytest.raises(errors.StepCorrupt, match=rf"slot \d says it accepted {count} tokens"):
                engine.step()
        assert request.finish_reason == "error"
        check_right(engine, oracle)
