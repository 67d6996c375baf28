"""Decode steps of the demo model while another process keeps one core busy.

Three scenes take turns: a quiet machine, and a spinning process bound to the first or to the second core, started
before the steps that count. The demo package must have been built: `python -m codegen build specs/tiny-hybrid.yaml`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
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
#: Steps longer than this are looked into.
SUSPECT_SECONDS = 1.5e-4
PROMPT = "import os\nimport sys\n\n\ndef read_lines(path):\n"


def measure(quick: bool) -> Iterator[Figure]:
    """The slowest of STEPS steps in a row beside a busy core, in medians of the quiet steps, per core.

    Median over turns: other processes of the machine may want the other core, too. `slow_elsewhere` counts slow steps
    in which the calling thread waited for a core that the spinning process is not bound to."""
    from runtime.engine import Engine

    if not PACKAGE.exists():
        raise SystemExit(f"{PACKAGE} is missing: python -m codegen build specs/tiny-hybrid.yaml")
    cores = sorted(os.sched_getaffinity(0))[:2]
    scenes = {core: Scene(core) for core in (None, *cores)}
    with Engine(PACKAGE, WEIGHTS, drafts=0, threads=2, checkpoints=False) as engine:
        Scene(None).run(engine, STEPS)
        gc.disable()
        for _ in range(QUICK_TURNS if quick else TURNS):
            for core, scene in scenes.items():
                with busy(core) if core is not None else nullcontext():
                    settle(engine)
                    scene.turns.append(scene.run(engine, STEPS))
        gc.enable()
    quiet = median(scenes[None].every())
    for scene in scenes.values():
        yield scene.figure(quiet)


@dataclass
class Scene:
    """Steps beside a process bound to `core`, or beside none. `turns`: seconds of the steps of each turn."""

    core: int | None
    turns: list[list[float]] = field(default_factory=list)
    #: Seconds of steps in which the calling thread waited for another core than `core`.
    elsewhere: list[float] = field(default_factory=list)

    def every(self) -> list[float]:
        """All steps, sorted."""
        return sorted(chain.from_iterable(self.turns))

    def figure(self, quiet: float) -> Figure:
        """The slowest step in units of the quiet median."""
        every, slowest = self.every(), median(max(turn) for turn in self.turns)
        detail = {
            "median_us": 1e6 * median(every),
            "p99_us": 1e6 * every[len(every) * 99 // 100],
            "clean_turns": float(sum(max(turn) <= REQUIRED * quiet for turn in self.turns)),
            "slow": float(sum(step > REQUIRED * quiet for step in every)),
            "slow_elsewhere": float(sum(step > REQUIRED * quiet for step in self.elsewhere)),
        }
        name = "quiet" if self.core is None else f"core {self.core} busy"
        size = f"{name}, {len(self.turns)} x {STEPS} steps"
        return Figure("slowest step", size, slowest / quiet, "of quiet", REQUIRED, detail)

    def run(self, engine: Any, count: int) -> list[float]:
        """Seconds of `count` decode steps of one slot."""
        found: list[float] = []
        while len(found) < count:
            request = engine.submit(PROMPT, max_new_tokens=ANSWER, temperature=0.8, seed=1, stop_at_eos=False)
            number, waited = 0, _waited()
            while not request.finished:
                begun = time.perf_counter()
                engine.step()
                seconds = time.perf_counter() - begun
                if number >= WARM:
                    found.append(seconds)
                    if seconds > SUSPECT_SECONDS:
                        before, waited = waited, _waited()
                        if 2 * (waited - before) > seconds and _last_core() != self.core:
                            self.elsewhere.append(seconds)
                number += 1
        return found[:count]


def _waited() -> float:
    """Seconds for which this thread has waited for a core."""
    return 1e-9 * int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def _last_core() -> int:
    return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])


def settle(engine: Any) -> None:
    """Run steps for SETTLING_SECONDS."""
    end = time.perf_counter() + SETTLING_SECONDS
    while time.perf_counter() < end:
        Scene(None).run(engine, ANSWER)


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
