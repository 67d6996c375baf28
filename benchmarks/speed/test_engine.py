"""The demo model's decode steps, prefill and capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from benchmarks.cpu_backend.read_loop import read_loop
from runtime.bandwidth import LINE
from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.executor import Phase
from runtime.traffic import Shape, step_launches

from .conftest import THREADS, Against, repeated

CONTEXT, STEPS = 128, 8
LONG_PROMPT = 512
WIDTH = 256


@pytest.fixture
def engine_of(demo: tuple[Path, Path]) -> Iterator[Callable[..., Engine]]:
    """Makes engines of the demo model, and closes them."""
    made: list[Engine] = []

    def make(**options: object) -> Engine:
        made.append(Engine(*demo, threads=THREADS, checkpoints=False, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def answering(engine: Engine) -> Callable[[], object]:
    """`engine.step` with one request that decodes, and goes on for as long as the context allows."""
    limits = engine.package.plan.limits
    request = engine.submit(ids(CONTEXT), max_new_tokens=limits.max_context - CONTEXT, stop_at_eos=False)
    while not request.output:
        engine.step()

    def step() -> None:
        assert engine.busy, "the request ended before the benchmark did"
        engine.step()

    return step


def ids(count: int, seed: int = 0) -> list[int]:
    """Random bytes."""
    return [Random(seed + i).randrange(256) for i in range(count)]


def test_step(engine_of: Callable[..., Engine], against: Against) -> None:
    engine = engine_of(drafts=0)
    launches = step_launches(engine.package.plan, Shape(1, 0, 0, CONTEXT, Drafter.NONE))
    moved = sum(launch.bytes for launch in launches)
    against(
        "step, K = 0",
        repeated(answering(engine), STEPS),
        reading(moved, STEPS),
        of="two new threads that read its bytes",
    )


def test_drafting_step(engine_of: Callable[..., Engine], against: Against) -> None:
    plain, drafting = (answering(engine_of(drafts=drafts)) for drafts in (0, 3))
    against("step, K = 3", repeated(drafting, STEPS), repeated(plain, STEPS), of="a step of K = 0")


def test_prefill(engine_of: Callable[..., Engine], against: Against) -> None:
    engine = engine_of(drafts=0)
    plan, seeds = engine.package.plan, iter(range(1, 1000))
    weights = [buffer for buffer in plan.buffers.values() if buffer.layout == "panel" and buffer.name != "lm_head"]
    columns = sum(source.shape[0] * source.shape[1] for buffer in weights for source in buffer.sources) // WIDTH
    x, w = torch.randn(LONG_PROMPT, WIDTH), torch.randn(WIDTH, columns)

    def prefill() -> None:
        request = engine.submit(ids(LONG_PROMPT, 1000 * next(seeds)), max_new_tokens=1, stop_at_eos=False)
        while not request.finished:
            engine.step()

    against(
        "prefill of 512", prefill, lambda: torch.mm(x, w), of="its matmuls as one, torch fp32, one thread", rounds=15
    )


def test_capture(engine_of: Callable[..., Engine], against: Against) -> None:
    """The graph of a step; an eager step runs the same Python, and the kernels."""
    executor = engine_of(drafts=0).scheduler.executor
    eager = answering(engine_of(drafts=0, eager=True))

    def capture() -> None:
        executor.graphs.clear()
        executor.graph(Phase.STEP, 1)

    against("capture of a step", capture, eager, of="an eager step", rounds=20)


def reading(size: int, times: int) -> Callable[[], object]:
    """Read `size` bytes `times` times, from wherever a cache keeps them."""
    whole = -(-size // 1024) * 1024
    memory = torch.ones(whole + LINE, dtype=torch.uint8)
    start = -memory.data_ptr() % LINE
    read = read_loop(memory[start : start + whole])
    return lambda: read(times)
