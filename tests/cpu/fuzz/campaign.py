"""Runs many programs, on several processes, and adds up what they found."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.cpu.fuzz.generate import generate
from tests.cpu.fuzz.interpreted import objection
from tests.cpu.fuzz.program import Program
from tests.cpu.fuzz.repro import write_repro
from tests.cpu.fuzz.run import Outcome, run
from tests.cpu.fuzz.shrink import shrink

#: Programs a process takes at a time.
CHUNK = 10


@dataclass
class Tally:
    """Sums over programs. `worst` is the largest error as a share of its bound, and `worst_at` where."""

    programs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    exact: int = 0
    unknown: int = 0
    worst: float = 0.0
    worst_at: int = -1
    compile_seconds: float = 0.0
    skipped: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        program = outcome.program
        self.programs += 1
        self.kinds[program.kind] += 1
        self.ops += outcome.ops
        self.dtypes.update({program.types[name].elem for stmt in program.walk() for name in stmt.results})
        self.compared += outcome.compared
        self.exact += outcome.exact
        self.unknown += outcome.unknown
        self.compile_seconds += outcome.compile_seconds
        if outcome.worst > self.worst:
            self.worst, self.worst_at = outcome.worst, program.index
        if not outcome.ok:
            self.differences.append((program.index, outcome.message))

    def merge(self, other: Tally) -> None:
        self.programs += other.programs
        for mine, theirs in ((self.kinds, other.kinds), (self.ops, other.ops), (self.dtypes, other.dtypes)):
            mine.update(theirs)
        self.skipped.update(other.skipped)
        self.compared += other.compared
        self.exact += other.exact
        self.unknown += other.unknown
        self.compile_seconds += other.compile_seconds
        if other.worst > self.worst:
            self.worst, self.worst_at = other.worst, other.worst_at
        self.differences += other.differences


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for sources, and a kernel cache of its own: nothing compiled before is used, nothing is left."""
    before = os.environ.get("TRITON_CACHE_DIR")
    folder = Path(tempfile.mkdtemp(prefix="stepforge-fuzz-"))
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def run_some(seed: int, indices: Iterable[int], interpreter: bool = False) -> Tally:
    """Run these programs here. `interpreter`: this process has TRITON_INTERPRET=1; leave out what that gets wrong."""
    tally = Tally()
    with scratch() as folder:
        for index in indices:
            program = generate(seed, index)
            if interpreter and (why := objection(program)) is not None:
                tally.skipped[why] += 1
            else:
                tally.add(run(program, folder))
    return tally


def campaign(
    seed: int, count: int, jobs: int, progress: Callable[[Tally, float], None], interpreter: bool = False
) -> Tally:
    """Run programs 0 .. count - 1 of a seed, on the backend or on Triton's interpreter; the outcome does not depend
    on `jobs`."""
    total, start = Tally(), time.perf_counter()
    chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    for tally in _tallies(seed, chunks, jobs, interpreter):
        total.merge(tally)
        progress(total, time.perf_counter() - start)
    total.differences.sort()
    return total


def _tallies(seed: int, chunks: list[range], jobs: int, interpreter: bool) -> Iterator[Tally]:
    if jobs == 1 and not interpreter:
        yield from (run_some(seed, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_prepare, initargs=(interpreter,)
    ) as pool:
        yield from pool.map(run_some, [seed] * len(chunks), chunks, [interpreter] * len(chunks))


def _prepare(interpreter: bool) -> None:
    """Before a process imports Triton."""
    if interpreter:
        os.environ["TRITON_INTERPRET"] = "1"


def minimal(program: Program, tries: int = 200) -> Outcome:
    """The smallest program found that fails like this one."""
    with scratch() as folder:
        first = run(program, folder)
        return run(shrink(program, lambda smaller: _fails_alike(first, smaller, folder), tries), folder)


def _fails_alike(first: Outcome, program: Program, folder: Path) -> bool:
    try:
        outcome = run(program, folder)
    except Exception:  # the oracle refuses: the smaller program does something undefined
        return False
    if first.failure:
        return outcome.failure.partition(":")[0] == first.failure.partition(":")[0]
    return outcome.difference is not None


def report(seed: int, index: int, folder: Path) -> tuple[Path, Outcome]:
    """Shrink program `index` and write what is left as a stand-alone script."""
    outcome = minimal(generate(seed, index))
    return write_repro(outcome, folder), outcome
