"""The bound of a kernel that streams weights: a C loop that reads the same bytes with as many threads."""

from __future__ import annotations

import ctypes
from statistics import median

import torch

from runtime.cpu import pool, toolchain

from .measure import Burst

#: Each thread sums its half with eight independent vector accumulators; hardware and software prefetch both run. The
#: threads are bound to two cores and start together, so starting a thread does not count, and the two never read one
#: after the other on one core, each as if it had the memory to itself. The time ends with the slower thread.
SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
typedef uint64_t lanes __attribute__((vector_size(64), aligned(64)));
typedef struct {
  const lanes *data;
  int64_t count;
  uint64_t sum;
  double ended, *started;
  atomic_int *ready;
} part;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void *read_part(void *argument) {
  part *p = argument;
  if (atomic_fetch_add(p->ready, 1) == 1) {
    *p->started = now();
    atomic_fetch_add(p->ready, 1);
  }
  while (atomic_load(p->ready) < 3) sched_yield();
  lanes total[8] = {0};
  for (int64_t i = 0; i + 8 <= p->count; i += 8)
    for (int j = 0; j < 8; j++) {
      __builtin_prefetch((const char *)(p->data + i + j) + 2048, 0, 3);
      total[j] += p->data[i + j];
    }
  for (int j = 0; j < 8; j++) for (int k = 0; k < 8; k++) p->sum += total[j][k];
  p->ended = now();
  return 0;
}

/* Seconds, or -1 if there are no two cores or no second thread. */
double read_twofold(const lanes *data, int64_t count, uint64_t *sum) {
  atomic_int ready = 0;
  double started = 0;
  part halves[2] = {{data, count / 2, 0, 0, &started, &ready}, {data + count / 2, count / 2, 0, 0, &started, &ready}};
  cpu_set_t allowed, mine, other;
  int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return -1;
  CPU_ZERO(&mine);
  CPU_SET(here, &mine);
  CPU_XOR(&other, &allowed, &mine);
  if (!CPU_COUNT(&other)) return -1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof other, &other);
  pthread_t thread;
  int failed = sched_setaffinity(0, sizeof mine, &mine) || pthread_create(&thread, &attributes, read_part, halves + 1);
  pthread_attr_destroy(&attributes);
  if (!failed) {
    read_part(halves);
    pthread_join(thread, 0);
  }
  sched_setaffinity(0, sizeof allowed, &allowed);
  *sum = halves[0].sum + halves[1].sum;
  double ended = halves[0].ended > halves[1].ended ? halves[0].ended : halves[1].ended;
  return failed ? -1 : ended - started;
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

    def once() -> float:
        seconds: float = library.read_twofold(tensor.data_ptr(), lines, total)
        if seconds < 0:
            raise RuntimeError("the read loop needs two cores: let this process run on two (taskset, cgroup)")
        return seconds

    return lambda repeats: median(once() for _ in range(repeats))
