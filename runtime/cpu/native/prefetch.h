/* Fetching ahead of a panel that streams from L3 or memory. */
#pragma once
#include "scalar.h"

#define CP_FARTHEST_BLOCK 8192
#ifdef CP_PREFETCH_BYTES /* a launch's own choice */
#define CP_BLOCK_AHEAD(bytes) CP_PREFETCH_BYTES
#else
#define CP_PREFETCH_BYTES 2048 /* how far ahead */
/* The same where products read a block of so many bytes one after another: only the first one waits for memory. */
#define CP_BLOCK_AHEAD(bytes) ((bytes) < CP_PREFETCH_BYTES ? CP_PREFETCH_BYTES : (bytes) < CP_FARTHEST_BLOCK ? (bytes) : CP_FARTHEST_BLOCK)
#endif

/* The lines of `bytes` bytes at p. */
CP_INLINE void cp_prefetch_at(const void *p, int bytes) {
  for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch((const char *)p + byte, 0, 3);
}
/* Those CP_PREFETCH_BYTES after them. */
CP_INLINE void cp_prefetch(const void *p, int bytes) { cp_prefetch_at((const char *)p + CP_PREFETCH_BYTES, bytes); }
