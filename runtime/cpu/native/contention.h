/* Other processes that want a core: how a thread notices, and what it does about it.
 *
 * Linux lets a thread run for its slice, some milliseconds, and then the next one for as long. A thread that yields while
 * nobody waits returns at once; otherwise it returns milliseconds later, so a yield tells whether the core is wanted, at a
 * moment of the thread's own choice. */
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CP_OFFER_MICROSECONDS 1000 /* a busy worker offers its core this often: before its slice ends */
#define CP_WANTED_NS 300000        /* a yield that took longer let somebody else run */
#define CP_AGAIN_WANTED_NS 1000000 /* after this time it is asked again: what is over by then was no neighbour */
#define CP_GAP_NS 1000000          /* the caller looks whether it was kept waiting after a gap of this length */
#define CP_FIRST_REST_NS 5000000   /* how long a worker rests; doubled as long as its core stays wanted */
#define CP_LAST_REST_NS 200000000
#define CP_AGAIN_NS 30000000 /* waits of the caller closer to each other than this have one cause */
#define CP_STAY_NS 20000000 /* the caller changes cores at most this often */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Let others run now; true if somebody did. */
static bool cp_offer_core(void) {
  int64_t start = now_ns();
  sched_yield();
  return now_ns() - start > CP_WANTED_NS;
}

/* Is a core that was wanted just now still wanted? A kernel thread or a process that ran for a moment is gone by then; to
 * rest for it would leave the caller alone for many times as long as it took. The caller of this holds nothing. */
static bool cp_still_wanted(void) {
  struct timespec t = {0, CP_AGAIN_WANTED_NS};
  nanosleep(&t, NULL);
  return cp_offer_core();
}

typedef struct {
  int64_t ended, length;
} cp_rest;

/* Sleep, longer each time, until nobody else wants the core. A worker that worked for twice as long as it last rested
 * starts with a short rest again: a neighbour that comes for a few milliseconds now and then costs little more than that,
 * one that stays is met rarely. */
static void cp_rest_until_unwanted(cp_rest *rest) {
  if (now_ns() - rest->ended > 2 * rest->length) rest->length = 0;
  do {
    int64_t longer = rest->length ? 2 * rest->length : CP_FIRST_REST_NS;
    rest->length = longer < CP_LAST_REST_NS ? longer : CP_LAST_REST_NS;
    struct timespec t = {rest->length / 1000000000, rest->length % 1000000000};
    nanosleep(&t, NULL);
  } while (cp_offer_core());
  rest->ended = now_ns();
}

/* Nanoseconds this thread has waited for a core since it exists; 0 where the kernel does not tell. */
static int64_t cp_waited_ns(void) {
  char text[96];
  int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  text[size < 0 ? 0 : size] = 0;
  const char *second = strchr(text, ' ');
  return second ? strtoll(second, NULL, 10) : 0;
}

/* Was most of the time since the last call spent waiting for a core? Asked often: short gaps cost nothing. */
static bool cp_kept_waiting(void) {
  static __thread int64_t last, waited;
  int64_t now = now_ns(), gap = now - last;
  last = now;
  if (gap < CP_GAP_NS) return false;
  int64_t before = waited;
  waited = cp_waited_ns();
  return 2 * (waited - before) > gap;
}

/* Move the calling thread to another core it may use, if there is one. Its affinity is as before afterwards. */
static void cp_change_core(void) {
  static __thread int64_t changed;
  cpu_set_t allowed, others;
  int64_t now = now_ns();
  int here = sched_getcpu();
  if (now - changed < CP_STAY_NS || here < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
  changed = now;
  others = allowed;
  CPU_CLR(here, &others);
  if (CPU_COUNT(&others) == 0) return;
  sched_setaffinity(0, sizeof others, &others);
  sched_setaffinity(0, sizeof allowed, &allowed);
}
