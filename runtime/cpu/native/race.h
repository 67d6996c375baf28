/* Races between the programs of one launch, found by shadow cells: who wrote and who read each piece of memory last.
 *
 * Two accesses of one cell by different programs race if one of them writes and not both are atomic, unless atomics order
 * them: the earlier program did an atomic operation after its access on an address on which the later one did an atomic
 * operation before its own. Programs run one after another, so "earlier" is the lower program.
 *
 * Lanes of one tensor store conflict if they give one cell different values. */
#pragma once
#include <stdlib.h>

/* Programs are counted from 1; `*_at` is the length of the log of atomics at the time of the access. */
typedef struct {
  uint32_t writer, writer_at, reader, reader_at, second, second_at;
  uint16_t write_site, read_site, second_site;
  uint16_t atomic : 1, instance : 15; /* of the store, 0: not told apart */
} cp_cell;
_Static_assert(sizeof(cp_cell) == 32, "CELL_BYTES in checks/shadow.py");

typedef struct {
  uint64_t address;
  uint32_t program;
} cp_event;

static __thread struct {
  cp_event *events;
  uint32_t count, room, own; /* own: where the running program's events begin */
} cp_log;

static void cp_race_begin(cp_check *c) {
  cp_log.events = NULL;
  cp_log.count = cp_log.room = cp_log.own = 0;
}

static void cp_race_end(cp_check *c) {
  free(cp_log.events);
  cp_log.events = NULL;
}

#define cp_race_program(c) (cp_log.own = cp_log.count, (c)->instance = 0)

static void cp_log_atomic(cp_check *c, uint64_t address) {
  if (cp_log.count == cp_log.room) {
    cp_log.room = cp_log.room ? 2 * cp_log.room : 1024;
    if (!(cp_log.events = realloc(cp_log.events, cp_log.room * sizeof(cp_event)))) abort();
  }
  cp_log.events[cp_log.count++] = (cp_event){address, (uint32_t)c->program + 1};
}

/* Do atomics order what `program` did at time `at` before what the running program does now? */
CP_COLD bool cp_ordered(uint32_t program, uint32_t at) {
  for (uint32_t i = at; i < cp_log.own && cp_log.events[i].program == program; i++)
    for (uint32_t k = cp_log.own; k < cp_log.count; k++)
      if (cp_log.events[i].address == cp_log.events[k].address) return true;
  return false;
}

enum { CP_READS = 1, CP_WRITES, CP_UPDATES };

CP_COLD void cp_race(cp_check *c, int site, uint64_t address, int64_t lane, uint32_t other, int other_site, int other_kind) {
  c->failure.other_program = other - 1;
  c->failure.other_site = other_site;
  c->failure.other_kind = other_kind;
  cp_stop(c, CP_FAIL_RACE, site, address, lane);
}

#define CP_EACH_CELL(c, e, address, size) \
  const uint32_t me = (uint32_t)(c)->program + 1; \
  cp_cell *first = (cp_cell *)(e)->shadow + (address - (e)->shadow_low) / (uint64_t)(c)->granule; \
  cp_cell *last = (cp_cell *)(e)->shadow + (address + (uint64_t)(size) - 1 - (e)->shadow_low) / (uint64_t)(c)->granule; \
  for (cp_cell *cell = first; cell <= last; cell++)

#define CP_AGAINST_WRITER(c, site, address, lane) \
  if (cell->writer && cell->writer != me && !cp_ordered(cell->writer, cell->writer_at)) \
    cp_race(c, site, address, lane, cell->writer, cell->write_site, cell->atomic ? CP_UPDATES : CP_WRITES);
#define CP_AGAINST_READERS(c, site, address, lane) \
  if (cell->reader && cell->reader != me && !cp_ordered(cell->reader, cell->reader_at)) \
    cp_race(c, site, address, lane, cell->reader, cell->read_site, CP_READS); \
  if (cell->second && cell->second != me && !cp_ordered(cell->second, cell->second_at)) \
    cp_race(c, site, address, lane, cell->second, cell->second_site, CP_READS);

static void cp_note_read(cp_cell *cell, uint32_t me, int site) {
  if (cell->reader && cell->reader != me) {
    cell->second = cell->reader;
    cell->second_at = cell->reader_at;
    cell->second_site = cell->read_site;
  }
  cell->reader = me;
  cell->reader_at = cp_log.count;
  cell->read_site = (uint16_t)site;
}

static void cp_note_write(cp_cell *cell, uint32_t me, int site, bool atomic, uint64_t instance) {
  cell->writer = me;
  cell->writer_at = cp_log.count;
  cell->write_site = (uint16_t)site;
  cell->atomic = atomic;
  cell->instance = instance < 1 << 15 ? instance : 0;
}

static void cp_race_load(cp_check *c, const cp_extent *e, int site, uint64_t address, int64_t size, int64_t lane) {
  if (!e->shadow) return;
  CP_EACH_CELL(c, e, address, size) {
    CP_AGAINST_WRITER(c, site, address, lane)
    cp_note_read(cell, me, site);
  }
}

static void cp_race_store(cp_check *c, const cp_extent *e, int site, uint64_t address, int64_t size, int64_t lane, const void *value) {
  if (!e->shadow) return;
  bool differs = memcmp((const void *)address, value, (size_t)size), same = c->same_value && !differs;
  CP_EACH_CELL(c, e, address, size) {
    if (!same || cell->atomic) CP_AGAINST_WRITER(c, site, address, lane)
    CP_AGAINST_READERS(c, site, address, lane)
    if (cell->instance && cell->writer == me && cell->instance == c->instance && differs)
      cp_stop(c, CP_FAIL_LANES, site, address, lane);
    cp_note_write(cell, me, site, false, c->instance);
  }
}

/* A volatile load: as little a race with atomics as these are with each other. */
static void cp_race_volatile(cp_check *c, const cp_extent *e, int site, uint64_t address, int64_t size, int64_t lane) {
  if (!e->shadow) return;
  CP_EACH_CELL(c, e, address, size) {
    if (!cell->atomic) CP_AGAINST_WRITER(c, site, address, lane)
  }
  cp_log_atomic(c, address);
}

/* An atomic operation that orders nothing (sem="relaxed"). */
static void cp_race_relaxed(cp_check *c, const cp_extent *e, int site, uint64_t address, int64_t size, int64_t lane) {
  if (!e->shadow) return;
  CP_EACH_CELL(c, e, address, size) {
    if (!cell->atomic) CP_AGAINST_WRITER(c, site, address, lane)
    CP_AGAINST_READERS(c, site, address, lane)
    cp_note_write(cell, me, site, true, 0);
  }
}

static void cp_race_atomic(cp_check *c, const cp_extent *e, int site, uint64_t address, int64_t size, int64_t lane) {
  cp_race_relaxed(c, e, site, address, size, lane);
  if (e->shadow) cp_log_atomic(c, address);
}
