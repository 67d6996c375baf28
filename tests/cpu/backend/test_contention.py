"""Beside other processes: direct launches use all threads, workers stay off the caller's core and off a wanted one.

Scenes with bound processes run in a process of their own, so that affinities do not leak into other tests."""

from __future__ import annotations

import ctypes
import functools
import os
import textwrap
import time

import pytest
import torch
import triton
import triton.language as tl
from alone import alone

from runtime.cpu import pool, toolchain

CORES = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(len(CORES) < 2, reason="needs two processors")
SOURCE = """
#include "contention.h"
int offer(void) { return cp_offer_core(); }
int still_wanted(void) { return cp_still_wanted(); }
int kept_waiting(void) { return cp_kept_waiting(); }
void change_core(void) { cp_change_core(); }
int here(void) { return sched_getcpu(); }
double rested(int times) {
  cp_rest rest = {0};
  int64_t start = now_ns();
  for (int i = 0; i < times; i++) cp_rest_until_unwanted(&rest);
  return 1e-9 * (now_ns() - start);
}
"""


@triton.jit
def churn(x, rounds, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    b = tl.load(x + o)
    for _ in range(rounds):
        b = tl.sqrt(b * b + 1.0)
    tl.store(x + o, b)


@functools.cache
def native() -> ctypes.CDLL:
    flags = [*toolchain.LIBRARY_FLAGS, "-I", str(toolchain.NATIVE)]
    library = pool.load_object("contention", toolchain._build(SOURCE, "contention", flags, []))
    library.rested.restype = ctypes.c_double
    return library


@needs_two
def test_direct_launches_are_shared(threads) -> None:
    """A launch that is not recorded learns as well: the other threads of this process burn processor time."""
    threads(2)
    x, end, share = torch.rand(64 * 256), time.monotonic() + 30, 0.0
    while share < 0.1 and time.monotonic() < end:  # beside busy neighbours workers rest most of the time
        mine, all_threads = time.thread_time(), time.process_time()
        for _ in range(200):
            churn[(64,)](x, 50, B=256)
        mine = time.thread_time() - mine
        share = (time.process_time() - all_threads - mine) / mine
    assert share >= 0.1


@needs_two
def test_workers_stay_off_the_core_of_the_caller() -> None:
    script = f"""
        import os, torch
        from test_contention import churn
        from runtime.cpu import set_num_threads
        before = set(os.listdir("/proc/self/task"))
        os.sched_setaffinity(0, {{{CORES[0]}, {CORES[1]}}})
        set_num_threads(2)
        x = torch.rand(64 * 256)
        for _ in range(500):
            churn[(64,)](x, 50, B=256)
        os.sched_setaffinity(0, {{{CORES[0]}}})
        os.sched_setaffinity(0, {{{CORES[0]}, {CORES[1]}}})
        masks = []
        for task in set(os.listdir("/proc/self/task")) - before:
            masks.append(sorted(os.sched_getaffinity(int(task))))
        print(any(len(mask) == 1 for mask in masks), sorted(os.sched_getaffinity(0)) == [{CORES[0]}, {CORES[1]}])
    """
    assert alone(script) == "True True"


BURNER = "import os; os.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"


def beside_burner(code: str) -> str:
    """Output of code that runs while a process spins on the first core; `lib` is the native library."""
    setup = f"""
        import os, subprocess, sys, time
        from test_contention import native, BURNER
        lib = native()
        burner = subprocess.Popen([sys.executable, "-c", BURNER % {CORES[0]}], stdout=subprocess.PIPE)
        burner.stdout.readline()
        time.sleep(0.05)
        try:
    """
    body = textwrap.indent(textwrap.dedent(code), "            ")
    return alone(
        textwrap.dedent(setup) + textwrap.indent(textwrap.dedent(body), "    ") + "\nfinally:\n    burner.kill()"
    )


@needs_two
def test_an_offer_finds_out_that_a_core_is_wanted() -> None:
    code = f"""
        os.sched_setaffinity(0, {{{CORES[0]}}})
        print(sum(lib.offer() for _ in range(20)) > 0)
    """
    assert beside_burner(code) == "True"


@needs_two
def test_a_neighbour_that_stays_is_found_again() -> None:
    code = f"""
        os.sched_setaffinity(0, {{{CORES[0]}}})
        print(sum(lib.still_wanted() for _ in range(20)) > 0)
    """
    assert beside_burner(code) == "True"


@needs_two
def test_what_ran_for_a_moment_is_not_found_again() -> None:
    """A neighbour that has ended by the time it is asked again, over and over: no rest may follow."""
    code = f"""
        import os, subprocess, sys
        from test_contention import native
        lib, found = native(), []
        os.sched_setaffinity(0, {{{CORES[0]}}})
        for _ in range(10):
            subprocess.run(["true"], check=True)
            lib.offer()
            found.append(lib.still_wanted())
        print(sum(found) < len(found))
    """
    assert alone(code) == "True"


@needs_two
def test_a_caller_that_was_kept_waiting_changes_cores() -> None:
    code = f"""
        os.sched_setaffinity(0, {{{CORES[0]}}})
        lib.kept_waiting()
        waited, end = False, time.monotonic() + 10
        while not waited and time.monotonic() < end:
            waited = bool(lib.kept_waiting())
        os.sched_setaffinity(0, {{{CORES[0]}, {CORES[1]}}})
        before = lib.here()
        lib.change_core()
        print(waited, lib.here() != before, sorted(os.sched_getaffinity(0)) == [{CORES[0]}, {CORES[1]}])
    """
    assert beside_burner(code) == "True True True"


def test_sleeping_is_not_waiting() -> None:
    lib = native()
    lib.kept_waiting()
    found = []
    for _ in range(5):
        time.sleep(0.05)
        found.append(lib.kept_waiting())
    assert sum(found) < len(found), "a thread that slept was taken for one that wanted a core"


def test_rests_get_longer() -> None:
    """One rest lasts 5 ms at least; each that follows at once is twice as long, if nobody takes the core in between."""
    lib = native()
    assert lib.rested(1) >= 0.005
    assert max(lib.rested(4) for _ in range(5)) >= 0.005 + 0.010 + 0.020 + 0.040


@needs_two
def test_a_neighbour_that_comes_now_and_then_costs_little_more_than_it_takes() -> None:
    """10 ms at a time, 14 % of a core: the worker has 0.83 of one. Rests of 50 ms would leave it 0.5 to 0.7."""
    visits = """
        import time
        while True:
            end = time.perf_counter() + 0.010
            while time.perf_counter() < end:
                pass
            time.sleep(0.060)
    """
    code = f"""
        import os, subprocess, sys, time, torch
        from test_contention import churn
        from runtime.cpu import set_num_threads
        os.sched_setaffinity(0, {{{CORES[0]}, {CORES[1]}}})
        set_num_threads(2)
        x = torch.rand(64 * 256)
        visitor = subprocess.Popen([sys.executable, "-c", {textwrap.dedent(visits)!r}])
        best, end = 0.0, time.monotonic() + 30
        try:
            while best < 0.75 and time.monotonic() < end:  # other neighbours may want the core as well
                start, mine, both = time.perf_counter(), time.thread_time(), time.process_time()
                while time.perf_counter() < start + 2:
                    churn[(64,)](x, 50, B=256)
                worker = time.process_time() - both - (time.thread_time() - mine)
                best = max(best, worker / (time.perf_counter() - start))
        finally:
            visitor.kill()
        print(best)
    """
    assert float(alone(code)) >= 0.75
