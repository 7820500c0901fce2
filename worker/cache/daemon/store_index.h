#ifndef EGERIA_WORKER_CACHE_DAEMON_STORE_INDEX_H_
#define EGERIA_WORKER_CACHE_DAEMON_STORE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "worker/cache/daemon/targeted_files.h"
#include "worker/cache/entry/fingerprint.h"

namespace rocksdb {
class ColumnFamilyHandle;
}

// An ActivationStore keeps this of its entries, and guards it by its lock.
namespace egeria::cache {

// An entry costs this much beside its own bytes, on the disk and in memory.
inline constexpr int64_t kOverhead = 128;

struct KnownEntry {
  uint32_t length = 0;
  BlobPlace place;                           // known once it was read
  std::shared_ptr<const std::byte[]> bytes;  // null: it is not in memory
};

struct KnownPrefix {
  std::shared_ptr<rocksdb::ColumnFamilyHandle> handle;
  std::unordered_map<uint64_t, KnownEntry> entries;  // by sample
  int64_t bytes = 0;
  int64_t memory_bytes = 0;
  std::vector<uint64_t> in_memory;  // these samples, and some that no longer are
  absl::Time last_used = absl::InfinitePast();
};

struct KnownJob {
  std::map<Fingerprint, KnownPrefix> prefixes;
  int attached = 0;
  int64_t quota_bytes = 0;
  uint64_t last_used = 0;
  int64_t bytes = 0;
  int64_t memory_bytes = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_STORE_INDEX_H_
