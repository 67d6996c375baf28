/* Fetching ahead of a panel that streams from L3 or memory. */
#pragma once
#include "scalar.h"

/* How far ahead, in bytes: panels that may lie in a cache; such as are coded because they come from memory; and a block
 * that several products read one after another, of which only the first waits for memory. */
#define CP_FARTHEST 8192
#ifdef CP_PREFETCH_BYTES /* a launch's own choice */
#define CP_CODED_AHEAD CP_PREFETCH_BYTES
#define CP_BLOCK_AHEAD(bytes) CP_PREFETCH_BYTES
#else
#define CP_PREFETCH_BYTES 2048
#define CP_CODED_AHEAD CP_FARTHEST
#define CP_BLOCK_AHEAD(bytes) ((bytes) < CP_PREFETCH_BYTES ? CP_PREFETCH_BYTES : (bytes) < CP_FARTHEST ? (bytes) : CP_FARTHEST)
#endif

/* The lines that are `ahead` bytes after `bytes` bytes at p. */
CP_INLINE void cp_prefetch(const void *p, int bytes, int64_t ahead) {
  for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch((const char *)p + ahead + byte, 0, 3);
}
