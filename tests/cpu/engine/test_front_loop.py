"""The event loop of an asyncio front never waits for a step. Its clock is the test: nothing may run beside it."""

from __future__ import annotations

import asyncio
import itertools
import time
from random import Random
from statistics import median

from runtime.engine import Engine
from runtime.front import AsyncFront
from tests.cpu.engine.fronts import LONG, PROMPT, answer, run, settle, slow_steps
from tests.cpu.engine.toys import Ask, drain


async def gaps_of_a_ticker(work) -> list[float]:
    """Seconds between the ticks of a coroutine that sleeps a millisecond at a time, while `work` is awaited."""
    ticks = [time.perf_counter()]

    async def tick():
        while True:
            await asyncio.sleep(0.001)
            ticks.append(time.perf_counter())

    ticker = asyncio.ensure_future(tick())
    try:
        await work
    finally:
        ticker.cancel()
    return [after - before for before, after in itertools.pairwise(ticks)]


def test_the_loop_ticks_while_a_step_runs(package, weights):
    async def main(engine):
        async with AsyncFront(engine) as front:
            with slow_steps(engine, 0.4):
                return await gaps_of_a_ticker(answer(front, Ask(PROMPT, 2)))

    with Engine(package, weights, drafts=0) as engine:
        drain_once(engine)
        gaps = run(main(engine))
    assert len(gaps) > 100 and max(gaps) < 0.3


def test_the_loop_ticks_through_a_run_of_prefills(package, weights):
    rng = Random(8)
    asks = [Ask(tuple(rng.randrange(256) for _ in range(110)), 1) for _ in range(60)]

    async def work(front):
        for _ in range(5):
            await asyncio.gather(*(answer(front, ask) for ask in asks))

    async def main(engine):
        async with AsyncFront(engine) as front:
            begun = time.perf_counter()
            return await gaps_of_a_ticker(work(front)), time.perf_counter() - begun

    with Engine(package, weights, prefill_chunk=16, checkpoints=False) as engine:
        drain_once(engine)
        gaps, seconds = run(main(engine))
    print(f"{seconds:.3f} s, {len(gaps)} ticks, the largest gap {1000 * max(gaps):.1f} ms")
    assert median(gaps) < 0.02 and max(gaps) < max(0.5, seconds / 3)


def drain_once(engine: Engine) -> None:
    """Record and compile what a test runs, so that it is not what the test measures."""
    Ask(PROMPT, 6).submit(engine)
    drain(engine)


def test_a_slow_consumer_stalls_nobody_and_gets_what_came_as_one_piece(package, weights, oracle):
    async def main(engine):
        async with AsyncFront(engine) as front:
            slow = front.stream(list(PROMPT), max_new_tokens=90)
            with slow_steps(engine, 0.01):
                first = await anext(slow)
            assert await answer(front, Ask(PROMPT[:9], 20)) == oracle(Ask(PROMPT[:9], 20))[0]
            await settle(front)
            rest = [piece async for piece in slow]
            assert len(rest) == 1
            return [*first.tokens, *rest[0].tokens]

    with Engine(package, weights) as engine:
        assert run(main(engine)) == oracle(LONG)[0]
