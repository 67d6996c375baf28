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
from pathlib import Path
from statistics import median
from typing import Any

from .measure import Figure

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, WEIGHTS = ROOT / "build" / "tiny_hybrid", ROOT / "specs" / "tiny-hybrid" / "weights.safetensors"
REQUIRED = 2.5
STEPS, QUICK_STEPS, TURNS, ANSWER = 1200, 240, 4, 128
#: Steps at the start of an answer that do not count: prefill, the first draft, and in a scene its first replays.
WARM = 8
PROMPT = "import os\nimport sys\n\n\ndef read_lines(path):\n"


def measure(quick: bool) -> Iterator[Figure]:
    """Slowest step beside a busy core, in medians of the quiet steps, per core."""
    from runtime.engine import Engine

    if not PACKAGE.exists():
        raise SystemExit(f"{PACKAGE} is missing: python -m codegen build specs/tiny-hybrid.yaml")
    cores = sorted(os.sched_getaffinity(0))[:2]
    scenes: dict[int | None, list[float]] = {core: [] for core in (None, *cores)}
    count = (QUICK_STEPS if quick else STEPS) // TURNS
    with Engine(PACKAGE, WEIGHTS, drafts=0, threads=2, checkpoints=False) as engine:
        steps(engine, count)
        gc.disable()
        for _ in range(TURNS):
            for core, found in scenes.items():
                with busy(core) if core is not None else nullcontext():
                    found += steps(engine, count)
        gc.enable()
    quiet = median(scenes[None])
    for core, found in scenes.items():
        yield _figure("quiet" if core is None else f"core {core} busy", found, quiet)


def _figure(scene: str, found: list[float], quiet: float) -> Figure:
    ordered = sorted(found)
    detail = {
        "median_us": 1e6 * median(ordered),
        "p99_us": 1e6 * ordered[len(ordered) * 99 // 100],
        "max_us": 1e6 * ordered[-1],
        "slow": float(sum(step > REQUIRED * quiet for step in ordered)),
    }
    return Figure("slowest step", f"{len(found)} steps, {scene}", ordered[-1] / quiet, "of quiet", REQUIRED, detail)


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
