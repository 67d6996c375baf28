"""The thread pool: same bits for any number of threads, forks, callers in parallel, busy neighbours."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu import BadArgument, get_num_threads, knobs, pool, set_num_threads, toolchain
from runtime.cpu.graph import HostGraph


@triton.jit
def softmax_rows(x, y, n, B: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * n + o, e / tl.sum(e, axis=0), mask=o < n)


@triton.jit
def count_visits(visits, n, B: tl.constexpr):
    tl.store(visits + tl.program_id(0), tl.load(visits + tl.program_id(0)) + 1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, y, x.shape[1], B=256)
    return y


def test_bits_do_not_depend_on_threads(threads) -> None:
    x = torch.randn(37, 200)
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        assert get_num_threads() == count
        results += [softmax(x), softmax(x)]
    assert all(torch.equal(results[0], other) for other in results)
    torch.testing.assert_close(results[0], x.softmax(1))


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 64, 1000])
def test_every_program_runs_once(threads, programs: int) -> None:
    threads(4)
    visits = torch.zeros(programs, dtype=torch.int32)
    graph = HostGraph()
    with graph.capture():
        for _ in range(50):
            count_visits[(programs,)](visits, programs, B=1)
    for _ in range(20):
        graph.replay()
    assert torch.equal(visits, torch.full_like(visits, 1000))


def learned(graph: HostGraph) -> list[tuple[int, int, int]]:
    """(trials, ticks shared, ticks of one thread) of every launch: the tail of each record."""
    return [record[5:] for record in struct.iter_unpack("=QQIIIIII", graph._records.raw)]


def test_a_long_launch_is_shared_from_its_first_run_on(threads) -> None:
    """Whether one thread would do is only tried of launches that may be short enough for it."""
    threads(2)
    long, short = torch.randn(1 << 15, 256), torch.randn(2, 8)
    out, little = torch.empty_like(long), torch.empty_like(short)
    graph = HostGraph()
    with graph.capture():
        softmax_rows[(1 << 15,)](long, out, 256, B=256)
        softmax_rows[(2,)](short, little, 8, B=8)
    for number in range(1, 41):
        graph.replay()
        (trials, shared, alone), (tried, _, short_alone) = learned(graph)
        assert trials == number and shared and not alone
        assert tried == number
    assert short_alone
    torch.testing.assert_close(out, long.softmax(1))


def test_chunks_get_smaller_towards_the_end_of_a_range() -> None:
    """Threads end together: the last chunk is a small part of its range. Early chunks are large: few are claimed."""
    source = '#include "pool.c"\nunsigned chunk(unsigned size, unsigned left) { return chunk_of(size, left); }'
    flags = [*toolchain.LIBRARY_FLAGS, "-I", str(toolchain.NATIVE)]
    chunk: ctypes._NamedFuncPointer = pool.load_object("chunks", toolchain._build(source, "chunks", flags, [])).chunk
    for size in [*range(1, 300), 1000, 4096, 65537]:
        left, chunks = size, []
        while left:
            chunks.append(chunk(size, left))
            assert 1 <= chunks[-1] <= left
            left -= chunks[-1]
        assert chunks == sorted(chunks, reverse=True)
        assert chunks[-1] <= max(1, size // 64)
        assert max(chunks) <= max(1, size // 8)
        assert len(chunks) <= 24


def test_an_empty_grid_runs_nothing(threads) -> None:
    threads(2)
    visits = torch.zeros(4, dtype=torch.int32)
    count_visits[(0,)](visits, 4, B=1)
    assert not visits.any()


def test_launches_from_several_python_threads(threads) -> None:
    threads(2)
    x = torch.randn(8, 200)
    expected, wrong = softmax(x), []

    def work() -> None:
        for _ in range(100):
            if not torch.equal(softmax(x), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_fork(threads) -> None:
    threads(2)
    x = torch.randn(64, 200)
    expected = softmax(x)
    child = os.fork()
    if child == 0:
        same = all(torch.equal(softmax(x), expected) for _ in range(20))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(softmax(x), expected)


def test_thread_count_follows_environment_and_affinity() -> None:
    code = "from runtime.cpu import get_num_threads; print(get_num_threads())"

    def count(**env: str) -> int:
        clean = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "STEPFORGE_CPU_THREADS")}
        return int(
            subprocess.run([sys.executable, "-c", code], env=clean | env, capture_output=True, check=True).stdout
        )

    available = len(os.sched_getaffinity(0))
    assert count() == available
    assert count(OMP_NUM_THREADS="1") == 1
    assert count(STEPFORGE_CPU_THREADS="1", OMP_NUM_THREADS="7") == 1
    assert count(OMP_NUM_THREADS="1000") == available


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, "2", None, True, 257, 100_000, 1 << 70])
def test_invalid_thread_count(threads, count: object) -> None:
    threads(2)
    with pytest.raises(BadArgument, match=r"at least 1 and at most 256 \[cpu-bad-argument\]$") as caught:
        set_num_threads(count)
    assert f"set_num_threads: count={count!r} " in str(caught.value)
    assert get_num_threads() == 2


def test_the_most_threads_are_those_of_the_pool(threads) -> None:
    source = (toolchain.NATIVE / "pool.c").read_text()
    assert f"#define MAX_THREADS {knobs.MOST_THREADS}\n" in source
    threads(np.int64(knobs.MOST_THREADS))
    assert get_num_threads() == knobs.MOST_THREADS


def test_busy_neighbours_do_not_stall_replay(threads) -> None:
    """Every core has another runnable process. Waiting for a descheduled thread at every launch would cost a time slice
    (milliseconds) each: 4000 launches would take more than ten seconds."""
    threads(2)
    visits = torch.zeros(8, dtype=torch.int32)
    graph = HostGraph()
    with graph.capture():
        for _ in range(200):
            count_visits[(8,)](visits, 8, B=1)
    graph.replay()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.2)
        start = time.perf_counter()
        for _ in range(20):
            graph.replay()
        elapsed = time.perf_counter() - start
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert elapsed < 4
