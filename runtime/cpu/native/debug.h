/* device_print and device_assert. The first failed assertion of a kernel is kept until the launcher takes it; programs that
 * start later do not run. */
#pragma once
#include <stdint.h>
#include <stdio.h>

typedef struct {
  int32_t site, program[3];
  const char *location, *text;
} cp_failure;

static int32_t cp_failing;
static cp_failure cp_failed;

static __attribute__((noinline, cold)) void cp_fail(int32_t site, int x, int y, int z) {
  int32_t none = 0;
  if (!__atomic_compare_exchange_n(&cp_failing, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
  cp_failed.program[0] = x, cp_failed.program[1] = y, cp_failed.program[2] = z;
  __atomic_store_n(&cp_failed.site, site, __ATOMIC_RELEASE);
}

/* Copy the failure and forget it. `site` counts from 1, and is 0 when nothing failed. */
static void cp_take(cp_failure *out) {
  *out = cp_failed;
  cp_failed.site = 0;
  __atomic_store_n(&cp_failing, 0, __ATOMIC_SEQ_CST);
}
