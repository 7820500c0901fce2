#ifndef EGERIA_WORKER_CACHE_ENTRY_XXH3_H_
#define EGERIA_WORKER_CACHE_ENTRY_XXH3_H_

#include <xxhash.h>

// XXH3 with the widest vectors that the processor has, where the library is built to choose them, and plain XXH3
// elsewhere. The hashes are the same.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#endif  // EGERIA_WORKER_CACHE_ENTRY_XXH3_H_
