/* Thread pool for launches: pthreads, bounded spinning, then futex sleep.
 *
 * Programs are claimed, not assigned: every thread owns a static range of each launch (so a program meets the same core
 * and its cache again) and takes it in chunks; when its range is empty it takes chunks of other ranges. A launch is
 * complete when all its programs have finished, and the thread that finishes the last one opens the next launch. Nobody
 * ever waits for a thread that holds no program, so a descheduled or late thread delays nothing but its own chunk.
 *
 * A launch has a generation. `ring[generation % RING]` describes it; a thread waits for generation g + 1 on the line that
 * will carry it, so opening a launch costs one cache line transfer per thread. A claim word is (generation, next program)
 * of one range; a word of an older generation means "nothing claimed yet", so nothing is reset between launches. Reading a
 * launch is a sequence lock on its generation: a late thread may read a torn description, but then sees that the generation
 * changed, or that nothing is left to claim.
 *
 * A busy neighbour takes a core for milliseconds at a time, and a thread that loses its core while it holds a chunk delays
 * the launch by as much. So a worker never gets that far: it offers its core now and then while it holds nothing, and
 * rests if somebody took it twice in a row (contention.h). The caller moves to another core after it has been kept waiting once, and
 * workers are kept off the core of the caller.
 *
 * Sharing a launch costs a few hundred nanoseconds, so the pool learns per recorded launch whether that pays: the thread
 * that opens a launch times it both ways now and then, and runs it alone if that is faster. The first run is shared: if
 * it is long, nothing has to be tried, and nobody waits twice as long for the first replay of a large graph.
 */
#include "pool.h"
#include "contention.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define cpu_relax() _mm_pause()
#define ticks_now() ((uint32_t)__rdtsc())
#else
#define cpu_relax() atomic_signal_fence(memory_order_seq_cst)
#define ticks_now() ((uint32_t)now_ns())
#endif

#define MAX_THREADS 256
#define RING 4
/* A chunk is half of what is left of its range, so that threads end together, within these parts of the range. */
#define LARGEST_CHUNKS 8
#define SMALLEST_CHUNKS 64
#define STEAL_PATIENCE 16 /* relaxations before taking from another thread's range */
/* A way is tried in several replays in a row, so that workers are awake. */
#define ALONE_TRIALS 2 /* after the first, which is shared */
#define FIRST_TRIALS 18
#define TRIAL_PERIOD 256 /* then the slower way is tried again at this distance */
#define TRIALS 6
#define DRIFT 32
#define LONG_MICROSECONDS 20 /* a launch that takes one thread so long is always shared */
#define SURELY_LONG 5 /* times as much, shared: no thread alone is faster, and waking one explains it no longer */
#define PURE_SPINS_SHARE 8 /* of a wait: spin, then spin with sched_yield, then sleep */
#define REMEMBERED 1024 /* launches whose way is known although they are not recorded; a power of two */
#define LINE _Alignas(64)

/* What a thread needs to know of a launch; one cache line. Fields are atomic because late threads may read them while they
 * change; `generation` is written last. count 0 marks the end of a region. */
typedef struct {
  LINE _Atomic uint32_t generation;
  _Atomic uint32_t threads;
  _Atomic(cp_kernel) run;
  _Atomic(const char *) args;
  _Atomic uint32_t grid[3];
  _Atomic uint32_t count;
  _Atomic uint64_t finish_at; /* value of `finished` when all programs are done */
} open_launch;

typedef struct {
  cp_kernel run;
  const char *args;
  uint32_t grid[3], count, threads, generation;
  uint64_t finish_at;
} launch_copy;

typedef struct {
  LINE _Atomic uint64_t word; /* generation << 32 | next program */
} claim;

static open_launch ring[RING];
static claim claims[MAX_THREADS];
static struct {
  LINE _Atomic uint64_t finished; /* programs finished since the process started */
} progress;
/* Sleeping threads wait for a change of `epoch`; workers and the caller of a region are woken separately. */
enum { WORKER = 1, CALLER = 2 };
static struct {
  LINE _Atomic uint32_t epoch;
  _Atomic int asleep; /* WORKER | CALLER */
} sleep_state;

/* The region being run; touched only by the thread that opens the next launch. */
static struct {
  cp_launch *launches;
  int64_t count, next;
  int64_t *times;
  uint32_t generation;
  uint32_t threads;
  cp_launch *open; /* the shared launch being run, and when it was opened */
  uint32_t opened;
} region;

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int wanted_threads = 1;
static int started_workers = 0;
static _Atomic int spin_budget = 2000;
static uint32_t long_ticks = 50000;
static uint32_t offer_ticks = 1000000;
static _Atomic int worker_ids[MAX_THREADS]; /* of the kernel, 0 before a worker runs */
static _Atomic int kept_off = -1;           /* the core that workers may not use; -1 when that must be said again */
static _Atomic int resting;                 /* workers whose core is wanted by others */
static _Atomic bool crowded;                /* more threads than cores */

static void futex(int operation, uint32_t value, uint32_t who) {
  syscall(SYS_futex, (uint32_t *)&sleep_state.epoch, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, who);
}

/* The mark is removed here, not by the woken: a thread that is awake but not yet scheduled costs no further system call. */
static void wake(int who) {
  if (!(atomic_load_explicit(&sleep_state.asleep, memory_order_seq_cst) & who)) return;
  if (!(atomic_fetch_and(&sleep_state.asleep, ~who) & who)) return;
  atomic_fetch_add(&sleep_state.epoch, 1);
  futex(FUTEX_WAKE_BITSET, INT_MAX, (uint32_t)who);
}

/* ---- opening launches */

static uint32_t programs(const cp_launch *l) { return l->grid[0] * l->grid[1] * l->grid[2]; }

static void publish(const cp_launch *launch) {
  uint32_t generation = ++region.generation;
  open_launch *o = &ring[generation % RING];
  uint32_t count = launch ? programs(launch) : 0;
  uint64_t base = atomic_load_explicit(&progress.finished, memory_order_relaxed);
  /* even an unlucky reader that still waits for this line's previous generation must not take the new fields for it */
  atomic_store_explicit(&o->generation, generation - RING + 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  if (launch) {
    atomic_store_explicit(&o->run, launch->run, memory_order_relaxed);
    atomic_store_explicit(&o->args, launch->args, memory_order_relaxed);
    for (int d = 0; d < 3; d++) atomic_store_explicit(&o->grid[d], launch->grid[d], memory_order_relaxed);
  }
  atomic_store_explicit(&o->threads, region.threads, memory_order_relaxed);
  atomic_store_explicit(&o->count, count, memory_order_relaxed);
  atomic_store_explicit(&o->finish_at, base + count, memory_order_relaxed);
  atomic_store_explicit(&o->generation, generation, memory_order_seq_cst);
  wake(launch ? WORKER | CALLER : CALLER);
}

enum { SHARED, ALONE };

static int way_of(const cp_launch *l, uint32_t count) {
  if (count == 1) return ALONE;
  if (!l->trials || l->ticks[SHARED] > SURELY_LONG * long_ticks) return SHARED;
  if (l->trials < FIRST_TRIALS) return l->trials <= ALONE_TRIALS ? ALONE : SHARED;
  if (l->ticks[ALONE] > long_ticks) return SHARED;
  int better = l->ticks[ALONE] < l->ticks[SHARED];
  return l->trials % TRIAL_PERIOD < TRIALS ? !better : better;
}

/* The fastest run lately: cold caches, a worker still asleep or a lost time slice say nothing about a way, but one that keeps
 * being slower drifts up. One run counts for at most four times what is known. */
static void learn(cp_launch *l, int way, uint32_t elapsed) {
  int64_t known = l->ticks[way], bounded = elapsed / 4 > known ? 4 * known : elapsed;
  l->ticks[way] = (uint32_t)(known == 0 || bounded < known ? elapsed : known + (bounded - known) / DRIFT);
  l->trials++;
}

/* Open the next launch that is shared, running those in between alone, or end the region. */
static void open_next(void) {
  if (region.open) learn(region.open, SHARED, ticks_now() - region.opened);
  region.open = NULL;
  while (region.next < region.count) {
    cp_launch *l = &region.launches[region.next];
    uint32_t count = programs(l);
    if (region.times) region.times[region.next] = now_ns();
    region.next++;
    if (!count) continue;
    uint32_t start = ticks_now();
    if (way_of(l, count) == SHARED) {
      region.open = l;
      region.opened = start;
      publish(l);
      return;
    }
    l->run(l->args, 0, count, l->grid[0], l->grid[1], l->grid[2]);
    if (count > 1) learn(l, ALONE, ticks_now() - start);
  }
  if (region.times) region.times[region.count] = now_ns();
  publish(NULL);
}

/* ---- running programs */

static uint32_t range_start(uint32_t count, uint32_t threads, uint32_t index) {
  return (uint32_t)(((uint64_t)count * index + threads - 1) / threads);
}

/* Programs to claim of a range of `size` of which `left` are not claimed yet. */
static uint32_t chunk_of(uint32_t size, uint32_t left) {
  uint32_t largest = size / LARGEST_CHUNKS, smallest = size / SMALLEST_CHUNKS, chunk = left / 2;
  chunk = chunk > largest ? largest : chunk;
  chunk = chunk < smallest ? smallest : chunk;
  return chunk == 0 ? 1 : chunk > left ? left : chunk;
}

/* Claim a chunk of range `index`. Returns the number of programs, 0 when the range is empty or the launch is over. */
static uint32_t claim_chunk(const launch_copy *l, uint32_t index, uint32_t *begin) {
  uint32_t low = range_start(l->count, l->threads, index), high = range_start(l->count, l->threads, index + 1);
  uint64_t word = atomic_load_explicit(&claims[index].word, memory_order_relaxed);
  for (;;) {
    int32_t age = (int32_t)((uint32_t)(word >> 32) - l->generation);
    uint32_t next = age < 0 ? low : (uint32_t)word;
    if (age > 0 || next >= high) return 0;
    uint32_t chunk = chunk_of(high - low, high - next);
    uint64_t taken = (uint64_t)l->generation << 32 | (next + chunk);
    if (atomic_compare_exchange_weak_explicit(&claims[index].word, &word, taken, memory_order_acq_rel, memory_order_relaxed)) {
      *begin = next;
      return chunk;
    }
  }
}

/* Run what can be claimed of one range; true if that finished the launch. */
static bool run_range(const launch_copy *l, uint32_t index) {
  uint32_t begin, chunk, done = 0;
  while ((chunk = claim_chunk(l, index, &begin))) {
    l->run(l->args, begin, begin + (int64_t)chunk, l->grid[0], l->grid[1], l->grid[2]);
    done += chunk;
  }
  return done && atomic_fetch_add_explicit(&progress.finished, done, memory_order_acq_rel) + done == l->finish_at;
}

static bool still_open(uint32_t generation) {
  return atomic_load_explicit(&ring[(generation + 1) % RING].generation, memory_order_relaxed) != generation + 1;
}

/* Work on a launch until nothing is left to claim. The thread that finishes it opens the next one. */
static void work(const launch_copy *l, uint32_t self) {
  if (self < l->threads && run_range(l, self)) {
    open_next();
    return;
  }
  for (int i = 0; i < STEAL_PATIENCE; i++) cpu_relax();
  for (uint32_t k = 1; k < l->threads && still_open(l->generation); k++) {
    if (run_range(l, (self + k) % l->threads)) {
      open_next();
      return;
    }
  }
}

/* Copy the description of `generation`; false if it was replaced meanwhile. */
static bool read_launch(uint32_t generation, launch_copy *l) {
  open_launch *o = &ring[generation % RING];
  l->run = atomic_load_explicit(&o->run, memory_order_relaxed);
  l->args = atomic_load_explicit(&o->args, memory_order_relaxed);
  for (int d = 0; d < 3; d++) l->grid[d] = atomic_load_explicit(&o->grid[d], memory_order_relaxed);
  l->count = atomic_load_explicit(&o->count, memory_order_relaxed);
  l->threads = atomic_load_explicit(&o->threads, memory_order_relaxed);
  l->finish_at = atomic_load_explicit(&o->finish_at, memory_order_relaxed);
  l->generation = generation;
  atomic_thread_fence(memory_order_acquire);
  return atomic_load_explicit(&o->generation, memory_order_relaxed) == generation;
}

/* Wait until a generation after `seen` is open: spin, spin politely, then sleep. Returns it or a later one. A worker that
 * lost its core meanwhile, or slept, has `*wanted` set if somebody else wanted the core. The caller gives its core
 * away only if the thread it waits for may be queued there. */
static uint32_t wait_after(uint32_t seen, int who, bool *wanted) {
  _Atomic uint32_t *word = &ring[(seen + 1) % RING].generation;
  int budget = atomic_load_explicit(&spin_budget, memory_order_relaxed), polite = budget - budget / PURE_SPINS_SHARE;
  for (int left = budget;;) {
    uint32_t value = atomic_load_explicit(word, memory_order_acquire);
    if ((int32_t)(value - seen) > 0) return value;
    if (left-- > 0) {
      cpu_relax();
      /* on a busy machine the thread waited for may be queued behind this one */
      if (left < polite && left % 32 == 0) {
        if (who == WORKER) *wanted |= cp_offer_core();
        else if (atomic_load_explicit(&crowded, memory_order_relaxed)) sched_yield();
      }
      continue;
    }
    uint32_t epoch = atomic_load_explicit(&sleep_state.epoch, memory_order_seq_cst);
    atomic_fetch_or(&sleep_state.asleep, who);
    value = atomic_load_explicit(word, memory_order_seq_cst);
    if ((int32_t)(value - seen) > 0) return value;
    futex(FUTEX_WAIT_BITSET, epoch, (uint32_t)who);
  }
}

static uint32_t latest_generation(void) {
  uint32_t latest = 0;
  for (int i = 0; i < RING; i++) {
    uint32_t g = atomic_load_explicit(&ring[i].generation, memory_order_relaxed);
    latest = (int32_t)(g - latest) > 0 ? g : latest;
  }
  return latest;
}

static void *worker(void *argument) {
  uint32_t self = (uint32_t)(uintptr_t)argument, seen = latest_generation(), offered = ticks_now();
  cp_rest rest = {0};
  int id = (int)syscall(SYS_gettid);
  atomic_store(&worker_ids[self], id);
  atomic_store(&kept_off, -1);
  while ((int)self < atomic_load_explicit(&wanted_threads, memory_order_relaxed)) {
    launch_copy l;
    bool wanted = false;
    if (read_launch(seen, &l) && l.count) work(&l, self);
    seen = wait_after(seen, WORKER, &wanted);
    if (ticks_now() - offered > offer_ticks) {
      wanted |= cp_offer_core();
      offered = ticks_now();
    }
    if (wanted && !atomic_load_explicit(&crowded, memory_order_relaxed)) {
      atomic_fetch_add(&resting, 1);
      if (cp_still_wanted()) cp_rest_until_unwanted(&rest);
      atomic_fetch_sub(&resting, 1);
      offered = ticks_now();
      seen = latest_generation();
    }
  }
  atomic_compare_exchange_strong(&worker_ids[self], &id, 0); /* a younger worker may have this index now */
  return NULL;
}

/* ---- regions */

static void start_workers(void) {
  while (started_workers < wanted_threads - 1) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 8u << 20);
    int failed = pthread_create(&thread, &attributes, worker, (void *)(uintptr_t)(started_workers + 1));
    pthread_attr_destroy(&attributes);
    if (failed) break;
    started_workers++;
  }
}

/* Leave a core that somebody else keeps the caller waiting for, if a worker found another one free or it happens again
 * soon, and keep workers off the one it runs on. */
static void choose_cores(void) {
  static int64_t kept_waiting_at;
  if (cp_kept_waiting()) {
    int64_t now = now_ns(), before = kept_waiting_at;
    kept_waiting_at = now;
    bool others_wanted = atomic_load_explicit(&resting, memory_order_relaxed) >= started_workers;
    if (!others_wanted || now - before < CP_AGAIN_NS) cp_change_core();
  }
  int here = sched_getcpu();
  if (here < 0 || atomic_load_explicit(&kept_off, memory_order_relaxed) == here) return;
  atomic_store(&kept_off, here);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  atomic_store(&crowded, CPU_COUNT(&allowed) <= started_workers);
  if (CPU_COUNT(&allowed) <= started_workers) return;
  CPU_CLR(here, &allowed);
  for (int i = 1; i <= started_workers; i++) {
    int id = atomic_load(&worker_ids[i]);
    if (id) sched_setaffinity(id, sizeof allowed, &allowed);
  }
}

/* Claim words compare generations modulo 2^32: bring words of ranges that were not used for long up to date. */
static void refresh_claims(void) {
  static uint32_t refreshed;
  if (region.generation - refreshed < 1u << 28) return;
  refreshed = region.generation;
  for (int i = 0; i < MAX_THREADS; i++) atomic_store(&claims[i].word, (uint64_t)refreshed << 32 | UINT32_MAX);
}

static void run_alone(const cp_launch *launches, int64_t count, int64_t *times) {
  for (int64_t i = 0; i < count; i++) {
    const cp_launch *l = &launches[i];
    if (times) times[i] = now_ns();
    int64_t n = (int64_t)l->grid[0] * l->grid[1] * l->grid[2];
    if (n) l->run(l->args, 0, n, l->grid[0], l->grid[1], l->grid[2]);
  }
  if (times) times[count] = now_ns();
}

static bool fits(const cp_launch *launches, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if ((double)launches[i].grid[0] * launches[i].grid[1] * launches[i].grid[2] > INT32_MAX) return false;
  return true;
}

/* False if the launches cannot be shared now; otherwise the pool is taken. */
static bool take_pool(const cp_launch *launches, int64_t count, const int64_t *times) {
  bool alone = wanted_threads == 1 || !fits(launches, count) || (count == 1 && !times && programs(launches) == 1);
  return !alone && !pthread_mutex_trylock(&busy);
}

static void run_region(cp_launch *launches, int64_t count, int64_t *times) {
  start_workers();
  choose_cores();
  refresh_claims();
  region.launches = launches;
  region.count = count;
  region.next = 0;
  region.times = times;
  region.open = NULL;
  region.threads = (uint32_t)started_workers + 1;
  uint32_t generation = region.generation + 1;
  open_next();
  for (;;) {
    launch_copy l;
    if (read_launch(generation, &l)) {
      if (!l.count) break;
      work(&l, 0);
    }
    generation = wait_after(generation, CALLER, NULL);
  }
}

void cp_run_launches(cp_launch *launches, int64_t count, int64_t *times) {
  if (!take_pool(launches, count, times)) {
    run_alone(launches, count, times);
    return;
  }
  run_region(launches, count, times);
  pthread_mutex_unlock(&busy);
}

/* What was learned of a launch that is not recorded: by kernel and grid. A collision forgets the older one. Touched by the
 * thread that holds the pool. */
static cp_launch *remembered(const cp_launch *l) {
  static cp_launch table[REMEMBERED];
  uint64_t key = (uint64_t)(uintptr_t)l->run;
  for (int d = 0; d < 3; d++) key = (key ^ l->grid[d]) * 0x9e3779b97f4a7c15u;
  cp_launch *found = &table[key >> 32 & (REMEMBERED - 1)];
  if (found->run != l->run || memcmp(found->grid, l->grid, sizeof l->grid)) *found = *l;
  found->args = l->args;
  return found;
}

void cp_run_one(cp_kernel run, const char *args, uint32_t gx, uint32_t gy, uint32_t gz) {
  cp_launch launch = {run, args, {gx, gy, gz}, 0, {0, 0}};
  if (!take_pool(&launch, 1, NULL)) {
    run_alone(&launch, 1, NULL);
    return;
  }
  run_region(remembered(&launch), 1, NULL);
  pthread_mutex_unlock(&busy);
}

/* ---- configuration and fork */

static void after_fork_in_child(void) {
  pthread_mutex_init(&busy, NULL);
  started_workers = 0;
  atomic_store(&sleep_state.asleep, 0);
  for (int i = 0; i < MAX_THREADS; i++) atomic_store(&worker_ids[i], 0);
  atomic_store(&resting, 0);
  atomic_store(&kept_off, -1);
}

/* Measure how long a relaxation and a tick take. */
static void calibrate(int spin_microseconds) {
  int64_t start = now_ns();
  uint32_t ticks = ticks_now();
  for (int i = 0; i < 1000; i++) cpu_relax();
  ticks = ticks_now() - ticks;
  int64_t elapsed = now_ns() - start + 1;
  double spins = spin_microseconds * 1e6 / (double)elapsed;
  atomic_store(&spin_budget, spins > 1e8 ? 100000000 : (int)spins);
  long_ticks = (uint32_t)(LONG_MICROSECONDS * 1e3 * ticks / (double)elapsed);
  offer_ticks = (uint32_t)(CP_OFFER_MICROSECONDS * 1e3 * ticks / (double)elapsed);
}

void cp_set_threads(int threads, int spin_microseconds) {
  static bool prepared;
  pthread_mutex_lock(&busy);
  if (!prepared) pthread_atfork(NULL, NULL, after_fork_in_child);
  prepared = true;
  wanted_threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
  /* workers beyond the new number end by themselves; should one linger, two threads may share an index safely */
  if (started_workers > wanted_threads - 1) started_workers = wanted_threads - 1;
  atomic_store(&kept_off, -1);
  calibrate(spin_microseconds);
  pthread_mutex_unlock(&busy);
}
