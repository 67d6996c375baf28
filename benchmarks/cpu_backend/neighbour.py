"""Decode steps of the demo model while another process keeps one core busy.

Three scenes take turns: a quiet machine, and a spinning process bound to the first or to the second core, started before
the steps that count. The demo package must have been built: `python -m codegen build specs/tiny-hybrid.yaml`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from .measure import Figure

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, WEIGHTS = ROOT / "build" / "tiny_hybrid", ROOT / "specs" / "tiny-hybrid" / "weights.safetensors"
REQUIRED = 2.5
STEPS, TURNS, QUICK_TURNS, ANSWER = 1000, 9, 3, 128
#: Steps at the start of an answer that do not count: prefill and the first replays.
WARM = 8
#: Steps at the start of a scene that do not count: until the scheduler and the pool know the neighbour.
SETTLING_SECONDS = 0.5
PROMPT = "import os\nimport sys\n\n\ndef read_lines(path):\n"


def measure(quick: bool) -> Iterator[Figure]:
    """The slowest of STEPS steps in a row beside a busy core, in medians of the quiet steps, per core.

    Median over turns: other processes of the machine may take the other core, too, and the quiet scene shows how often."""
    from runtime.engine import Engine

    if not PACKAGE.exists():
        raise SystemExit(f"{PACKAGE} is missing: python -m codegen build specs/tiny-hybrid.yaml")
    cores = sorted(os.sched_getaffinity(0))[:2]
    scenes: dict[int | None, list[list[float]]] = {core: [] for core in (None, *cores)}
    with Engine(PACKAGE, WEIGHTS, drafts=0, threads=2, checkpoints=False) as engine:
        steps(engine, STEPS)
        gc.disable()
        for _ in range(QUICK_TURNS if quick else TURNS):
            for core, found in scenes.items():
                with busy(core) if core is not None else nullcontext():
                    settle(engine)
                    found.append(steps(engine, STEPS))
        gc.enable()
    quiet = median(chain.from_iterable(scenes[None]))
    for core, found in scenes.items():
        yield _figure("quiet" if core is None else f"core {core} busy", found, quiet)


def _figure(scene: str, turns: list[list[float]], quiet: float) -> Figure:
    every = sorted(chain.from_iterable(turns))
    slowest = median(max(turn) for turn in turns)
    detail = {
        "median_us": 1e6 * median(every),
        "p99_us": 1e6 * every[len(every) * 99 // 100],
        "slowest_us": 1e6 * slowest,
        "clean_turns": float(sum(max(turn) <= REQUIRED * quiet for turn in turns)),
        "slow_steps": float(sum(step > REQUIRED * quiet for step in every)),
    }
    size = f"{scene}, {len(turns)} x {STEPS} steps"
    return Figure("slowest step", size, slowest / quiet, "of quiet", REQUIRED, detail)


def settle(engine: Any) -> None:
    """Run steps for SETTLING_SECONDS."""
    end = time.perf_counter() + SETTLING_SECONDS
    while time.perf_counter() < end:
        steps(engine, ANSWER)


def steps(engine: Any, count: int) -> list[float]:
    """Seconds of `count` decode steps of one slot."""
    found: list[float] = []
    while len(found) < count:
        request = engine.submit(PROMPT, max_new_tokens=ANSWER, temperature=0.8, seed=1, stop_at_eos=False)
        number = 0
        while not request.finished:
            begun = time.perf_counter()
            engine.step()
            if number >= WARM:
                found.append(time.perf_counter() - begun)
            number += 1
    return found[:count]


@contextmanager
def busy(core: int) -> Iterator[None]:
    """A process that spins on one core."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    burner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert burner.stdout is not None
        burner.stdout.readline()
        time.sleep(0.05)
        yield
    finally:
        burner.kill()
        burner.communicate()
