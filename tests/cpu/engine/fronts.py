"""What the tests of the asyncio front share: prompts, ends of streams, and steps that take their time."""

from __future__ import annotations

import asyncio
import contextlib
import time

from runtime.engine import Engine
from runtime.front import AsyncFront
from tests.cpu.engine.toys import Ask

PROMPT = tuple(b"pack my box with five dozen")
LONG = Ask(PROMPT, 90)
PATIENCE = 60  # seconds until a test that hangs gives up


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def options(ask: Ask) -> dict:
    return {
        "max_new_tokens": ask.max_new_tokens,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "stop_tokens": ask.stop_tokens,
    }


async def answer(front: AsyncFront, ask: Ask) -> list[int]:
    """Tokens of a stream; its text must be that of the finished request."""
    request = await front.submit(list(ask.prompt), **options(ask))
    pieces = [piece async for piece in front.stream(request)]
    assert "".join(piece.text for piece in pieces) == await front.run(lambda engine: engine.result(request).text)
    return [token for piece in pieces for token in piece.tokens]


async def outcome(stream) -> tuple[list[int], BaseException | None]:
    """Tokens that came, and what ended them if it was an error."""
    tokens = []
    try:
        async for piece in stream:
            tokens += piece.tokens
    except Exception as error:
        return tokens, error
    return tokens, None


@contextlib.contextmanager
def slow_steps(engine: Engine, seconds: float):
    """Every step sleeps, and so lets other threads run as a long kernel does."""
    step = engine.scheduler.step

    def slow():
        time.sleep(seconds)
        return step()

    engine.scheduler.step = slow
    yield
    engine.scheduler.step = step


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def settle(front: AsyncFront) -> None:
    """Until nothing waits or runs."""
    while await front.run(lambda engine: engine.busy):
        await asyncio.sleep(0.001)
