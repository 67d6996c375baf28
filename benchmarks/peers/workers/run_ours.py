"""Stepforge as a side: run_ours.py PACKAGE WEIGHTS THREADS."""

from __future__ import annotations

import sys
import time
from typing import Any

from serve import Generate, serve

from runtime.bandwidth import read_bandwidth
from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.traffic import Shape, step_launches

BANDWIDTH_SECONDS = 0.3


def main(package: str, weights: str, threads: int) -> None:
    """Serve one engine, and the read bandwidth of as many threads."""
    kept: list[Engine] = []

    def load() -> tuple[Generate, dict[str, Any]]:
        kept.append(Engine(package, weights, drafts=0, threads=threads, checkpoints=False))
        return lambda asked, new: generate(kept[0], asked, new), {}

    def bandwidth(ask: dict[str, Any]) -> dict[str, float]:
        """Bytes per second that a buffer of the size of a step's weights is read with."""
        step = step_bytes(kept[0], 1, ask["context"])
        return {"bytes_per_second": read_bandwidth(step, threads, BANDWIDTH_SECONDS), "step_bytes": step}

    serve(load, bandwidth=bandwidth)


def step_bytes(engine: Engine, slots: int, context: int) -> int:
    """Bytes of a decode step of `slots` requests without drafts."""
    shape = Shape(slots, 0, 0, context, Drafter.NONE)
    return sum(launch.bytes for launch in step_launches(engine.package.plan, shape))


def generate(engine: Engine, asked: list[list[int]], new: int) -> tuple[float, float, int]:
    """Times of the whole of `Engine.step`. What is decoded while others prefill counts as the first part."""
    begun = time.perf_counter()
    requests = [engine.submit(prompt, max_new_tokens=new, stop_at_eos=False) for prompt in asked]
    while not all(request.output for request in requests):
        engine.step()
    first = time.perf_counter()
    early = sum(len(request.output) for request in requests)
    while engine.busy:
        engine.step()
    return first - begun, time.perf_counter() - first, len(asked) * new - early


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
