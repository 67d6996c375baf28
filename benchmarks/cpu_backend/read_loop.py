"""The bound of a kernel that streams weights: a C loop that reads the same bytes with as many threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from runtime.cpu import pool, toolchain

#: Each thread sums its part with eight independent vector accumulators; hardware and software prefetch both run.
SOURCE = r"""
#include <pthread.h>
#include <stdint.h>
typedef uint64_t lanes __attribute__((vector_size(64), aligned(64)));
typedef struct { const lanes *data; int64_t count; uint64_t sum; } part;

static void *read_part(void *argument) {
  part *p = argument;
  lanes total[8] = {0};
  for (int64_t i = 0; i + 8 <= p->count; i += 8)
    for (int j = 0; j < 8; j++) {
      __builtin_prefetch((const char *)(p->data + i + j) + 2048, 0, 3);
      total[j] += p->data[i + j];
    }
  for (int j = 0; j < 8; j++) for (int k = 0; k < 8; k++) p->sum += total[j][k];
  return 0;
}

uint64_t read_twofold(const lanes *data, int64_t count) {
  part halves[2] = {{data, count / 2, 0}, {data + count / 2, count / 2, 0}};
  pthread_t other;
  if (pthread_create(&other, 0, read_part, halves + 1)) return 0;
  read_part(halves);
  pthread_join(other, 0);
  return halves[0].sum + halves[1].sum;
}
"""
LINE = 64


def read_loop(tensor: torch.Tensor) -> Callable[[], int]:
    """A call that reads all of a contiguous tensor once with two threads. Its storage must be aligned to 64 bytes."""
    library = pool.load_object("read_loop", toolchain.build_kernel(SOURCE, "read_loop"))
    library.read_twofold.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.read_twofold.restype = ctypes.c_uint64
    lines = tensor.numel() * tensor.element_size() // LINE
    if tensor.data_ptr() % LINE or lines % 16:
        raise ValueError("the read loop takes a tensor aligned to 64 bytes with a multiple of 1024 bytes")
    return lambda: library.read_twofold(tensor.data_ptr(), lines)
