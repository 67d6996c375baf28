"""Decode steps of SmolLM2 while another process keeps one core busy, whichever it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

from benchmarks import prepared
from benchmarks.cpu_backend.neighbour import busy
from runtime.bench.common import quiet
from runtime.engine import Engine

from .steps import Promise, answer, prompt, spec_path

STEPS, PROMPT, NEW = 1000, 16, 257
MEDIAN_RATIO, STALL_RATIO = 2.5, 10.0
#: Steps of this time do not count: until the pool and the kernel's scheduler know the neighbour.
SETTLING_SECONDS = 0.5


def measure(rounds: int, threads: int, details: dict[str, Any]) -> Iterator[Promise]:
    """Per core: the median step and the slowest of STEPS, in medians of the quiet steps. Scenes take turns.

    rounds: turns of each scene; the slowest step is the median over turns, for other processes come and go.
    """
    folder = prepared.package(spec_path("smollm2-135m"))
    weights = prepared.random_weights(folder)
    cores = sorted(os.sched_getaffinity(0))[:2]
    turns: dict[int | None, list[list[float]]] = {core: [] for core in (None, *cores)}
    with Engine(folder, weights, drafts=0, threads=threads, checkpoints=False) as engine, quiet():
        answer(engine, prompt(0, PROMPT), NEW)
        for _ in range(rounds):
            for core, found in turns.items():
                with busy(core) if core is not None else nullcontext():
                    _settle(engine)
                    found.append(_steps(engine))
    medians = {core: median(median(turn) for turn in found) for core, found in turns.items()}
    slowest = {core: median(max(turn) for turn in found) for core, found in turns.items()}
    alone = medians[None]
    for core in turns:
        name = "quiet" if core is None else f"core {core} busy"
        details[name] = {
            "median_ms": 1e3 * medians[core],
            "slowest_ms": 1e3 * slowest[core],
            "turns": [{"median_ms": 1e3 * median(turn), "slowest_ms": 1e3 * max(turn)} for turn in turns[core]],
        }
    for core in cores:
        yield Promise(f"core {core} busy: the median step, in quiet ones", medians[core] / alone, MEDIAN_RATIO, False)
        name = f"core {core} busy: the slowest of {STEPS} steps, in quiet medians"
        yield Promise(name, slowest[core] / alone, STALL_RATIO, False)


def _steps(engine: Engine) -> list[float]:
    found: list[float] = []
    while len(found) < STEPS:
        found += answer(engine, prompt(len(found), PROMPT), NEW).steps
    return found[:STEPS]


def _settle(engine: Engine) -> None:
    end = time.perf_counter() + SETTLING_SECONDS
    while time.perf_counter() < end:
        answer(engine, prompt(1, PROMPT), PROMPT)
