"""How fast this machine reads memory: a C loop over as much as a step's working set, all threads at once."""

from __future__ import annotations

import ctypes
import threading
import time

import torch

from runtime.errors import BenchUnavailable

SOURCE = r"""
#include <stdint.h>
typedef uint64_t lanes __attribute__((vector_size(64), aligned(64)));
uint64_t read_bytes(const lanes *data, int64_t count, int64_t repeats) {
  lanes total[8] = {0};
  for (int64_t r = 0; r < repeats; r++) {
    for (int64_t i = 0; i + 8 <= count; i += 8)
      for (int j = 0; j < 8; j++) total[j] ^= data[i + j];
    __asm__ volatile("" ::: "memory");
  }
  uint64_t sum = 0;
  for (int j = 0; j < 8; j++) for (int k = 0; k < 8; k++) sum += total[j][k];
  return sum;
}
"""
LINE = 64
MIN_LINES = 4096


def read_bandwidth(working_set: int, threads: int, seconds: float = 0.2, tries: int = 5) -> float:
    """Bytes per second that `threads` threads read together, each its own part of a buffer of `working_set` bytes.

    The best of `tries` passes of about seconds / tries, after one that warms the caches: a bound, not an average.
    Raises BenchUnavailable without a C compiler.
    """
    library = _library()
    lines = max(MIN_LINES, working_set // LINE // threads // 8 * 8)
    buffer = torch.randint(256, (threads * lines * LINE + LINE,), dtype=torch.uint8)
    start = -(-buffer.data_ptr() // LINE) * LINE
    repeats = max(1, int(seconds / tries * 2e10 / (lines * LINE)))
    rates = [_pass(library, start, lines, threads, repeats) for _ in range(tries + 1)]
    return max(rates[1:])


def _pass(library: ctypes.CDLL, start: int, lines: int, threads: int, repeats: int) -> float:
    """Sum over threads of the rate each saw while all of them ran."""
    rates = [0.0] * threads
    barrier = threading.Barrier(threads)

    def read(index: int) -> None:
        barrier.wait()
        begun = time.perf_counter()
        library.read_bytes(start + index * lines * LINE, lines, repeats)
        rates[index] = lines * LINE * repeats / (time.perf_counter() - begun)

    workers = [threading.Thread(target=read, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)


def _library() -> ctypes.CDLL:
    try:
        from runtime.cpu import pool, toolchain

        library = pool.load_object("read_bytes", toolchain.build_kernel(SOURCE, "read_bytes"))
    except Exception as error:
        raise BenchUnavailable(what="the read bandwidth of this machine", detail=error) from error
    library.read_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.read_bytes.restype = ctypes.c_uint64
    return library
