"""The bound of a kernel that streams weights: a C loop that reads the same bytes with as many threads."""

from __future__ import annotations

import ctypes
from statistics import median

import torch

from runtime.cpu import pool, toolchain

from .measure import Burst

#: Each thread sums its half with eight independent vector accumulators; hardware and software prefetch both run. The
#: time is that of the slower thread from its own start, so starting a thread does not count.
SOURCE = r"""
#include <pthread.h>
#include <stdint.h>
#include <time.h>
typedef uint64_t lanes __attribute__((vector_size(64), aligned(64)));
typedef struct { const lanes *data; int64_t count; uint64_t sum; double seconds; } part;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void *read_part(void *argument) {
  part *p = argument;
  double start = now();
  lanes total[8] = {0};
  for (int64_t i = 0; i + 8 <= p->count; i += 8)
    for (int j = 0; j < 8; j++) {
      __builtin_prefetch((const char *)(p->data + i + j) + 2048, 0, 3);
      total[j] += p->data[i + j];
    }
  for (int j = 0; j < 8; j++) for (int k = 0; k < 8; k++) p->sum += total[j][k];
  p->seconds = now() - start;
  return 0;
}

double read_twofold(const lanes *data, int64_t count, uint64_t *sum) {
  part halves[2] = {{data, count / 2, 0, 0}, {data + count / 2, count / 2, 0, 0}};
  pthread_t other;
  if (pthread_create(&other, 0, read_part, halves + 1)) return -1;
  read_part(halves);
  pthread_join(other, 0);
  *sum = halves[0].sum + halves[1].sum;
  return halves[0].seconds > halves[1].seconds ? halves[0].seconds : halves[1].seconds;
}
"""
LINE = 64


def read_loop(tensor: torch.Tensor) -> Burst:
    """Reads all of a contiguous tensor with two threads. Its storage must be aligned to 64 bytes."""
    library = pool.load_object("read_loop", toolchain.build_kernel(SOURCE, "read_loop"))
    library.read_twofold.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64)]
    library.read_twofold.restype = ctypes.c_double
    lines, total = tensor.numel() * tensor.element_size() // LINE, ctypes.c_uint64()
    if tensor.data_ptr() % LINE or lines % 16:
        raise ValueError("the read loop takes a tensor aligned to 64 bytes with a multiple of 1024 bytes")
    return lambda repeats: median(library.read_twofold(tensor.data_ptr(), lines, total) for _ in range(repeats))
