"""Closing an asyncio front: every stream ends, the engine is given back, and no thread stays."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from safetensors.torch import save_file

from runtime import errors
from runtime.engine import Engine
from runtime.front import AsyncFront
from tests.cpu.engine.fronts import PATIENCE, PROMPT, outcome, run, slow_steps, until
from tests.cpu.engine.toys import Ask, drain


async def closed_by_front(front, engine):
    await front.close()


async def closed_by_command(front, engine):
    await front.run(lambda engine: engine.close())


async def closed_by_engine(front, engine):
    await asyncio.to_thread(engine.close)


async def closed_by_shutdown(front, engine):
    front.shutdown()


@pytest.mark.parametrize("close", [closed_by_front, closed_by_command, closed_by_engine, closed_by_shutdown])
@pytest.mark.parametrize("own", [False, True])
def test_closing_ends_every_stream_with_an_error(package, weights, oracle, close, own):
    async def main(engine):
        front = AsyncFront.of(engine) if own else AsyncFront(engine)
        with slow_steps(engine, 0.02):
            streams = [front.stream(list(PROMPT[: 3 + i]), max_new_tokens=90) for i in range(7)]
            calls = [asyncio.ensure_future(outcome(stream)) for stream in streams]
            await until(lambda: engine.scheduler.counters.output_tokens)
            late = asyncio.ensure_future(front.submit([1]))
            await close(front, engine)
            results = await asyncio.gather(*calls)
        assert all(isinstance(error, errors.EngineClosed) for _, error in results)
        assert any(tokens for tokens, _ in results)
        with contextlib.suppress(errors.EngineClosed):
            assert (await late).finish_reason == "cancelled"
        await until(lambda: front.closed)
        for call in (front.submit([1]), front.run(lambda engine: 1), anext(front.stream([1]))):
            with pytest.raises(errors.EngineClosed):
                await call
        await front.close()

    with Engine(package, weights, drafts=0) as engine:
        run(main(engine))
        assert not engine.busy
        if not engine.closed:
            assert list(engine.generate(list(PROMPT), max_new_tokens=9).tokens) == oracle(Ask(PROMPT, 9))[0]


class Shutting:
    """A matcher that allows everything until it is shut."""

    shut = False

    def fill_next_token_bitmask(self, bitmask, index: int = 0) -> None:
        bitmask[index] = 0 if self.shut else -1

    def accept_token(self, token: int) -> bool:
        return not self.shut

    def rollback(self, num_tokens: int) -> None:
        pass

    def is_terminated(self) -> bool:
        return False


@pytest.mark.parametrize("reason", ["limit", "grammar", "deadline"])
def test_an_answer_that_was_over_before_the_close_is_no_error(package, weights, reason):
    """Its end and the close are taken between the same two steps."""
    engine, matcher = Engine(package, weights, drafts=3), Shutting()

    def end(engine: Engine) -> None:
        matcher.shut = reason == "grammar"
        if reason == "deadline":
            for request in engine.scheduler.unfinished():
                request.options = dataclasses.replace(request.options, deadline=0.0)
        drain(engine)

    async def main() -> None:
        front = AsyncFront(engine)
        request = await front.submit(
            list(PROMPT), max_new_tokens=90, stop_at_eos=False, grammar=matcher, deadline=PATIENCE
        )

        def both(_: Engine) -> None:
            front._worker.post(end)
            front._worker.commands.put(None)

        listening = asyncio.ensure_future(outcome(front.stream(request)))
        await until(lambda: front._worker.open.get(request))
        await front.run(both)
        tokens, error = await listening
        assert error is None and request.finish_reason == reason and tokens == request.output

    with slow_steps(engine, 0.01):
        run(main())


def test_a_front_that_nobody_holds_ends_its_thread(package, weights):
    engine = Engine(package, weights)
    for busy in (False, True):
        front = AsyncFront(engine)
        if busy:
            engine.scheduler.step = lambda: time.sleep(0.01) or []  # for ever
            run(front.submit([1]))
        thread = front._thread
        del front
        gc.collect()
        thread.join(PATIENCE)
        assert not thread.is_alive() and engine.owner is None and not engine.busy


def test_an_engine_and_its_own_front_can_be_collected(package, weights):
    async def first(engine):
        await anext(engine.astream([1], max_new_tokens=3))

    engine = Engine(package, weights)
    run(first(engine))
    thread, gone = AsyncFront.of(engine)._thread, weakref.ref(engine)
    del engine
    deadline = time.perf_counter() + PATIENCE
    while (gone() is not None or thread.is_alive()) and time.perf_counter() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None and not thread.is_alive()


EXIT = """
import asyncio, sys
from runtime.engine import Engine
from runtime.front import AsyncFront

async def begin():
    return [await front.submit([i], max_new_tokens=100) for i in range(200)]

engine = Engine(sys.argv[1], sys.argv[2])
front = AsyncFront(engine)
requests = asyncio.run(begin())
print("running", not requests[-1].finished)
"""


@pytest.mark.parametrize("end", ["pass", "engine.close()"])
def test_the_interpreter_exits_while_a_front_runs(package, weights, tmp_path, end):
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / "w.safetensors")
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", EXIT + end, str(package.path), str(tmp_path / "w.safetensors")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "running True\n", "")
