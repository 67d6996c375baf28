"""The asyncio front: the tokens of the engine, and ends that hang nobody."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from runtime import errors
from runtime.engine import Engine
from runtime.front import AsyncFront
from tests.cpu.engine.fronts import LONG, PROMPT, answer, options, outcome, run, settle, slow_steps, until
from tests.cpu.engine.toys import Ask, draw_ask

# Tokens


def test_many_streams_give_the_answers_of_the_engine_alone(package, weights, oracle):
    rng = Random(3)
    asks = [draw_ask(rng) for _ in range(16)]

    async def main():
        with Engine(package, weights, drafts=3) as engine:
            async with AsyncFront(engine) as front:
                return await asyncio.gather(*(answer(front, ask) for ask in asks))

    assert run(main()) == [oracle(ask)[0] for ask in asks]


def test_hundreds_of_requests_pass_through_four_slots(package, weights, oracle):
    kinds = [draw_ask(Random(seed), longest=12) for seed in range(10)]
    asks = [kinds[i % 10] for i in range(500)]

    async def main():
        with Engine(package, weights, drafts=2) as engine:
            async with AsyncFront(engine) as front:
                answers = await asyncio.gather(*(answer(front, ask) for ask in asks))
                return answers, await front.run(lambda engine: engine.stats())

    answers, stats = run(main())
    assert answers == [oracle(ask)[0] for ask in asks]
    assert (stats.finished, stats.waiting, stats.active) == (500, 0, 0)


def test_the_engine_streams_to_coroutines_itself(package, weights, oracle):
    async def main(engine):
        pieces = [piece async for piece in engine.astream(list(PROMPT), max_new_tokens=9)]
        assert AsyncFront.of(engine) is AsyncFront.of(engine)
        with pytest.raises(errors.EngineInUse):
            AsyncFront(engine)
        return [token for piece in pieces for token in piece.tokens]

    with Engine(package, weights) as engine:
        assert run(main(engine)) == run(main(engine)) == oracle(Ask(PROMPT, 9))[0]
        front = AsyncFront.of(engine)
    assert front.closed
    with pytest.raises(errors.EngineClosed):
        engine.astream([1])


def test_requests_that_were_there_before_run_on_and_can_be_streamed(package, weights, oracle):
    async def main(engine, request):
        async with AsyncFront(engine) as front:
            await until(lambda: request.finished)
            return [piece.tokens async for piece in front.stream(request)]

    with Engine(package, weights) as engine:
        request = LONG.submit(engine)
        engine.step()
        pieces = run(main(engine, request))
        assert [list(tokens) for tokens in pieces] == [oracle(LONG)[0]], "what is there already is one piece"


def test_fronts_of_several_engines_share_a_loop(package, weights, oracle):
    asks = [Ask(PROMPT[: 5 + i], 10, temperature=1.0, seed=i) for i in range(3)]

    async def main():
        with contextlib.ExitStack() as stack:
            engines = [stack.enter_context(Engine(package, weights, drafts=i)) for i in range(3)]
            async with contextlib.AsyncExitStack() as fronts:
                own = [await fronts.enter_async_context(AsyncFront(engine)) for engine in engines]
                return await asyncio.gather(*(answer(front, ask) for front in own for ask in asks))

    assert run(main()) == [oracle(ask)[0] for ask in asks] * 3


def test_loops_of_several_threads_share_a_front(package, weights, oracle):
    asks = [Ask(PROMPT[: 5 + i], 20, temperature=1.0, seed=i) for i in range(6)]

    async def two(front, i):
        return await asyncio.gather(answer(front, asks[2 * i]), answer(front, asks[2 * i + 1]))

    with Engine(package, weights) as engine, ThreadPoolExecutor(3) as threads:
        front = AsyncFront(engine)
        pairs = list(threads.map(lambda i: run(two(front, i)), range(3)))
        front.shutdown()
    assert [tokens for pair in pairs for tokens in pair] == [oracle(ask)[0] for ask in asks]


def test_a_request_that_is_rewound_is_streamed_from_there(package, weights, oracle):
    """The same seed draws the same tokens again: what had been shown, and then the whole answer."""

    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.01):
                request = await front.submit(list(PROMPT), max_new_tokens=LONG.max_new_tokens)
                stream, tokens = front.stream(request), []
                while len(tokens) < 10:
                    tokens += (await anext(stream)).tokens
                await front.run(lambda engine: engine.rewind(request, len(PROMPT)))
            rest, error = await outcome(stream)
            assert error is None
            return tokens + rest

    with Engine(package, weights, drafts=2) as engine:
        tokens, whole = run(main(engine)), oracle(LONG)[0]
    shown = len(tokens) - len(whole)
    assert shown >= 10 and tokens == whole[:shown] + whole


# Leaving


async def left_by_close(stream):
    await anext(stream)
    await stream.aclose()


async def left_by_break(stream):
    async for _ in stream:
        break


async def left_by_timeout(stream):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            async for _ in stream:
                pass


async def left_by_cancellation(stream):
    async def consume():
        async for _ in stream:
            pass

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [left_by_close, left_by_break, left_by_timeout, left_by_cancellation])
def test_leaving_a_stream_cancels_its_request_and_no_other(package, weights, oracle, leave):
    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.02):
                request = await front.submit(list(PROMPT), max_new_tokens=90)
                other = asyncio.ensure_future(answer(front, Ask(PROMPT[:7], 12)))
                await leave(front.stream(request))
                await until(lambda: request.finished)
            assert request.finish_reason == "cancelled"
            assert await other == oracle(Ask(PROMPT[:7], 12))[0]
            assert await answer(front, LONG) == oracle(LONG)[0]

    with Engine(package, weights, drafts=0) as engine:
        run(main(engine))


@pytest.mark.parametrize("when", [0.0, 0.05, 0.15])
def test_a_call_that_is_cancelled_leaves_no_request(package, weights, when):
    """Before it reaches the engine, and while the answer is on its way back."""

    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.1):
                running = await front.submit(list(PROMPT), max_new_tokens=40)
                calls = [asyncio.ensure_future(front.submit(list(PROMPT))), asyncio.ensure_future(consume(front))]
                await asyncio.sleep(when)
                for call in calls:
                    call.cancel()
                results = await asyncio.gather(*calls, return_exceptions=True)
            returned = sum(not isinstance(result, asyncio.CancelledError) for result in results)
            await settle(front)
            stats = await front.run(lambda engine: engine.stats())
            assert running.finish_reason != "cancelled"
            assert stats.requests == stats.finished == 1 + returned + stats.cancelled

    async def consume(front):
        async for _ in front.stream(list(PROMPT)):
            pass

    with Engine(package, weights) as engine:
        run(main(engine))


def test_a_result_that_nobody_took_is_cancelled(package, weights):
    """The command has run, its answer has arrived in the loop, and only then the caller is cancelled."""

    async def main(engine):
        async with AsyncFront(engine) as front:
            call, gate = asyncio.ensure_future(front.submit(list(PROMPT))), threading.Event()
            held = asyncio.ensure_future(front.run(lambda _: gate.wait(10)))  # no step before the call is cancelled
            await asyncio.sleep(0)
            while not engine.scheduler.counters.requests:
                time.sleep(0.001)  # not a turn of the loop
            call.cancel()
            gate.set()
            await held
            with pytest.raises(asyncio.CancelledError):
                await call
            await settle(front)
            assert (await front.run(lambda engine: engine.stats())).cancelled == 1

    with Engine(package, weights) as engine:
        run(main(engine))


def test_a_request_that_is_cancelled_ends_its_streams(package, weights):
    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.02):
                request = await front.submit("€" * 12, max_new_tokens=60)
                streams = [front.stream(request), front.stream(request)]
                first = await asyncio.gather(*(anext(stream) for stream in streams))
                await front.cancel(request)
                rest = [[piece async for piece in stream] for stream in streams]
            for piece, pieces in zip(first, rest, strict=True):
                tokens = [token for part in (piece, *pieces) for token in part.tokens]
                assert tokens == request.output and request.finish_reason == "cancelled"
                text = await front.run(lambda engine: engine.result(request).text)
                assert "".join(part.text for part in (piece, *pieces)) == text
            assert await outcome(front.stream(request)) == (request.output, None)

    with Engine(package, weights, drafts=0) as engine:
        run(main(engine))


def test_a_deadline_ends_a_stream_whether_it_runs_or_waits(package, weights, oracle):
    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.02):
                requests = [await front.submit(list(PROMPT), max_new_tokens=90, deadline=left) for left in (0.4, 0.2)]
                return requests, await asyncio.gather(*(outcome(front.stream(request)) for request in requests))

    with Engine(package, weights, slots=1, drafts=0) as engine:
        requests, ends = run(main(engine))
    whole = oracle(LONG)[0]
    assert [request.finish_reason for request in requests] == ["deadline", "deadline"]
    assert ends == [(whole[: len(ends[0][0])], None), ([], None)]


def test_a_loop_that_was_closed_costs_its_requests_only(package, weights, oracle):
    with Engine(package, weights, drafts=0) as engine:
        front = AsyncFront(engine)
        loop = asyncio.new_event_loop()
        with slow_steps(engine, 0.02):
            stream = front.stream(list(PROMPT), max_new_tokens=90)
            loop.run_until_complete(anext(stream))
            loop.close()
            assert run(answer(front, Ask(PROMPT[:9], 20))) == oracle(Ask(PROMPT[:9], 20))[0]
        run(settle(front))
        front.shutdown()
        assert engine.stats().cancelled == 1 and not engine.busy


# Refusals


def test_a_full_queue_is_told_to_who_submits(package, weights, oracle):
    ask = Ask(PROMPT, 12)

    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.02):
                calls = (front.submit(list(PROMPT), **options(ask)) for _ in range(9))
                results = await asyncio.gather(*calls, return_exceptions=True)
                streams = await asyncio.gather(*(outcome(front.stream(list(PROMPT), **options(ask))) for _ in range(9)))
                assert any(isinstance(error, errors.QueueFull) for _, error in streams)
            requests = [result for result in results if not isinstance(result, errors.QueueFull)]
            assert 2 <= len(requests) < 9
            for request in requests:
                pieces = [piece async for piece in front.stream(request)]
                assert [token for piece in pieces for token in piece.tokens] == oracle(ask)[0]
            return await answer(front, ask)

    with Engine(package, weights, slots=1, max_queue=2, drafts=7) as engine:
        assert run(main(engine)) == oracle(ask)[0]


def test_mistakes_are_told_to_who_makes_them(package, weights):
    async def main(engine, foreign):
        async with AsyncFront(engine) as front:
            for call, error in (
                (front.submit([]), errors.PromptEmpty),
                (front.submit([1], temperature=-1), errors.BadOption),
                (front.submit([1], colour="red"), TypeError),
                (front.cancel(foreign), errors.ForeignRequest),
                (anext(front.stream(foreign)), errors.ForeignRequest),
                (anext(front.stream(foreign, seed=1)), errors.BadOption),
                (front.run(lambda engine: 1 // 0), ZeroDivisionError),
                (front.run(lambda engine: next(iter(()))), RuntimeError),
            ):
                with pytest.raises(error):
                    await call
            assert await front.run(lambda engine: 7) == 7 and not engine.busy

    with Engine(package, weights) as engine, Engine(package, weights) as other:
        run(main(engine, other.submit([1])))


def test_nobody_else_may_call_an_engine_that_has_a_front(package, weights, oracle):
    async def main(engine):
        front = AsyncFront(engine)
        with slow_steps(engine, 0.01):
            running = asyncio.ensure_future(answer(front, LONG))
            await until(lambda: engine.busy)
            check_refused(engine)
        assert await front.run(lambda engine: engine.set_drafts(1)) is None
        with pytest.raises(errors.EngineInUse):
            await front.run(AsyncFront)
        assert await running == oracle(LONG)[0]
        await front.close()
        await front.close()
        assert front.closed

    def check_refused(engine):
        for call in (
            engine.step,
            lambda: engine.submit([1]),
            lambda: engine.generate([1]),
            lambda: engine.generate_batch([[1], [2]]),
            lambda: next(engine.stream([1])),
            lambda: engine.set_drafts(1),
            lambda: AsyncFront(engine),
        ):
            with pytest.raises(errors.EngineInUse, match="close it first"):
                call()

    with Engine(package, weights) as engine:
        run(main(engine))
        assert list(engine.generate(list(PROMPT), max_new_tokens=9).tokens) == oracle(Ask(PROMPT, 9))[0]
        run(main(engine))


# Steps that raise


def test_an_error_of_a_step_ends_those_it_ran_and_the_front_goes_on(package, weights, oracle):
    asks = [Ask(PROMPT[: 6 + i], 25, temperature=1.0, seed=i) for i in range(6)]

    async def main(engine):
        executor = engine.scheduler.executor
        replay, replays = executor.replay, itertools.count()

        def lying(graph):
            replay(graph)
            if next(replays) == 12:
                for slot in range(4):
                    executor.views["num_accepted"][slot] = 99

        executor.replay = lying
        async with AsyncFront(engine) as front:
            requests = [await front.submit(list(ask.prompt), **options(ask)) for ask in asks]
            results = await asyncio.gather(*(outcome(front.stream(request)) for request in requests))
            dropped = [request for request in requests if request.finish_reason == "error"]
            for request in dropped:  # also who asks later is told
                assert isinstance((await outcome(front.stream(request)))[1], errors.StepCorrupt)
            return results, len(dropped)

    with Engine(package, weights, drafts=2, slots=2) as engine:
        results, dropped = run(main(engine))
    assert 1 <= dropped <= 2
    for ask, (tokens, error) in zip(asks, results, strict=True):
        assert isinstance(error, errors.StepCorrupt) or (error is None and tokens == oracle(ask)[0])
        assert tokens == oracle(ask)[0][: len(tokens)]
    assert sum(error is not None for _, error in results) == dropped


def test_an_error_is_not_held_against_another_try(package, weights, oracle):
    async def main(engine):
        async with AsyncFront(engine) as front:
            replay, replays = engine.scheduler.executor.replay, itertools.count()

            def failing(graph):
                replay(graph)
                if next(replays) == 8:
                    raise OSError

            engine.scheduler.executor.replay = failing
            request = await front.submit(list(PROMPT), max_new_tokens=LONG.max_new_tokens)
            tokens, error = await outcome(front.stream(request))
            assert tokens == request.output and isinstance(error, OSError)
            await front.run(lambda engine: engine.rewind(request, len(PROMPT)))
            return await outcome(front.stream(request))

    with Engine(package, weights) as engine:
        assert run(main(engine)) == (oracle(LONG)[0], None)


def test_an_error_before_anybody_is_seated_ends_all_instead_of_coming_again(package, weights, oracle, monkeypatch):
    async def main(engine):
        async with AsyncFront(engine) as front:
            with monkeypatch.context() as patch:
                patch.setattr(engine.scheduler, "step", lambda: 1 // 0)
                results = await asyncio.gather(*(outcome(front.stream([1, 2, i])) for i in range(9)))
            assert all(isinstance(error, ZeroDivisionError) for _, error in results)
            return await answer(front, LONG)

    with Engine(package, weights) as engine:
        assert run(main(engine)) == oracle(LONG)[0]
