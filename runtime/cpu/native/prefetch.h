/* Fetching ahead of a panel that streams from L3 or memory. */
#pragma once
#include "scalar.h"

#ifndef CP_PREFETCH_BYTES
#define CP_PREFETCH_BYTES 2048 /* how far ahead */
#endif

/* The lines that are CP_PREFETCH_BYTES after `bytes` bytes at p. */
CP_INLINE void cp_prefetch(const void *p, int bytes) {
  for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch((const char *)p + CP_PREFETCH_BYTES + byte, 0, 3);
}
