/* Interface between launcher, host graph and thread pool. */
#pragma once
#include <stdint.h>

/* Runs programs begin .. end - 1 of a grid (x fastest). */
typedef void (*cp_kernel)(const char *args, int64_t begin, int64_t end, uint32_t gx, uint32_t gy, uint32_t gz);

/* `trials` and `ticks` start at zero and belong to the pool: it learns which launches are too short to share. */
typedef struct {
  cp_kernel run;
  const char *args;
  uint32_t grid[3];
  uint32_t trials;
  uint32_t ticks[2]; /* estimated duration shared by all threads, and run by one */
} cp_launch;

/* Run launches[0 .. count - 1] in order, each complete before the next starts. If times is not NULL, times[i] receives
 * the moment launch i was opened and times[count] the end, in nanoseconds. Safe to call from several threads: while the
 * pool is busy, a second caller runs its programs alone. */
void cp_run_launches(cp_launch *launches, int64_t count, int64_t *times);

/* One launch. */
void cp_run_one(cp_kernel run, const char *args, uint32_t gx, uint32_t gy, uint32_t gz);

/* Threads that run programs, the caller included. Takes effect at the next launch. */
void cp_set_threads(int threads, int spin_microseconds);
