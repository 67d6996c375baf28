"""Stepforge as a side: run_ours.py PACKAGE WEIGHTS THREADS CONTEXT."""

from __future__ import annotations

import sys
import time
from typing import Any

from serve import Generate, serve

from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.traffic import Shape, step_launches


def main(package: str, weights: str, threads: int, context: int) -> None:
    """Serve one engine; it says how many bytes a step of one request with `context` tokens moves."""

    def load() -> tuple[Generate, dict[str, Any]]:
        engine = Engine(package, weights, drafts=0, threads=threads, checkpoints=False)
        return lambda asked, new: generate(engine, asked, new), step_bytes(engine, 1, context)

    serve(load)


def step_bytes(engine: Engine, slots: int, context: int) -> dict[str, int]:
    """Bytes of a decode step of `slots` requests without drafts: as the weights are stored, and as we read them."""
    launches = list(step_launches(engine.package.plan, Shape(slots, 0, 0, context, Drafter.NONE)))
    return {
        "step_bytes": sum(launch.stored_bytes for launch in launches),
        "read_bytes": sum(launch.bytes for launch in launches),
    }


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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
