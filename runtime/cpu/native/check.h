/* Checked kernels: every access is tested against the extents of the launch's arguments before it happens. A failure is
 * recorded in the launch's cp_check and ends the launch. Programs run in order, on one thread. */
#pragma once
#include <setjmp.h>

#define cp_unlikely(x) __builtin_expect(!!(x), 0)
#define CP_COLD static __attribute__((noinline, cold))

/* ---- shared with runtime/cpu/checks/extents.py */

/* Memory one argument names: [low, high), without gaps if dims is 0. Else an offset is split by `stride` (bytes, falling)
 * into indices below `size`, and what remains lies in a run of `run` bytes. `shadow`: cells of the bytes from
 * `shadow_low`, 0 when the launch is not searched for races there. `poisoned`: loads look for the poison pattern. */
typedef struct {
  uint64_t low, high;
  int64_t dims, run, size[6], stride[6];
  int64_t poisoned;
  uint64_t shadow_low, shadow;
} cp_extent;

enum { CP_FAIL_NONE, CP_FAIL_BOUNDS, CP_FAIL_OVERFLOW, CP_FAIL_TILE, CP_FAIL_RACE, CP_FAIL_LANES, CP_FAIL_POISON };

typedef struct {
  int64_t kind, site, lane, link, exact, other_site, other_kind;
  uint64_t address, program, other_program;
} cp_check_failure;

typedef struct {
  cp_check_failure failure;
  int64_t num_extents, same_value, granule;
  const cp_extent *extents;
  uint64_t program;  /* linear index of the running program */
  uint64_t instance; /* stores the program has begun */
} cp_check;

/* ---- bounds */

/* An access of `size` bytes through a pointer derived from one of `count` arguments; 0: from any. */
typedef struct {
  int32_t size, count;
  const int32_t *from;
} cp_site;

static __thread jmp_buf cp_escape;

CP_COLD __attribute__((noreturn)) void cp_stop(cp_check *c, int kind, int site, uint64_t address, int64_t lane) {
  c->failure.kind = kind;
  c->failure.site = site;
  c->failure.address = address;
  c->failure.lane = lane;
  c->failure.program = c->program;
  longjmp(cp_escape, 1);
}

CP_COLD int cp_link(cp_check *c, int link, int64_t exact) {
  c->failure.link = link;
  c->failure.exact = exact;
  return 1;
}

CP_INLINE bool cp_within(const cp_extent *e, uint64_t address, int64_t size) {
  if (address < e->low || address > e->high || e->high - address < (uint64_t)size) return false;
  if (!e->dims) return true;
  int64_t rest = (int64_t)(address - e->low);
  for (int64_t d = 0; d < e->dims; d++) {
    int64_t i = rest / e->stride[d];
    if (i >= e->size[d]) return false;
    rest -= i * e->stride[d];
  }
  return rest + size <= e->run;
}

/* The argument whose memory holds the access, NULL if none of the site's does. */
CP_INLINE const cp_extent *cp_holder(const cp_check *c, const cp_site *s, uint64_t address) {
  int64_t count = s->count ? s->count : c->num_extents;
  for (int64_t k = 0; k < count; k++) {
    const cp_extent *e = &c->extents[s->count ? s->from[k] : k];
    if (cp_within(e, address, s->size)) return e;
  }
  return NULL;
}

CP_INLINE bool cp_is_poison(uint64_t address, int64_t size) {
  const uint64_t pattern = 0x7ffd7ffd7ffd7ffdu; /* PATTERN of checks/poison.py, four times */
  return size > 1 && !memcmp((const void *)address, &pattern, (size_t)size);
}

/* Does an access of this kind see what was there before? */
enum { cp_reads_load = 1, cp_reads_volatile = 1, cp_reads_store = 0, cp_reads_atomic = 1, cp_reads_relaxed = 1 };

#define CP_HOLDER(kind, check, site, address, lane) \
  const cp_extent *holder = cp_holder(check, &cp_sites[site], address); \
  if (cp_unlikely(!holder)) cp_stop(check, CP_FAIL_BOUNDS, site, address, lane); \
  if (cp_reads_##kind && cp_unlikely(holder->poisoned) && cp_is_poison(address, cp_sites[site].size)) \
    cp_stop(check, CP_FAIL_POISON, site, address, lane);

#ifdef CP_RACES
#include "race.h"
#define CP_CHECK(kind, check, site, address, lane, ...) \
  { CP_HOLDER(kind, check, site, address, lane) \
    cp_race_##kind(check, holder, site, address, cp_sites[site].size, lane __VA_ARGS__); }
#else
#define CP_CHECK(kind, check, site, address, lane, ...) { CP_HOLDER(kind, check, site, address, lane) }
#define cp_race_begin(check)
#define cp_race_program(check)
#define cp_race_end(check)
#endif
