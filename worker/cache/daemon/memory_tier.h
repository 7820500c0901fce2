#ifndef EGERIA_WORKER_CACHE_DAEMON_MEMORY_TIER_H_
#define EGERIA_WORKER_CACHE_DAEMON_MEMORY_TIER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "common/base/ids.h"
#include "worker/cache/daemon/store_index.h"

namespace egeria::cache {

// Small entries of an ActivationStore that are in memory as well as on the disk, so that reading them touches no file.
// Each job may have an equal part, and more while others leave it. An entry stays until its prefix or its job's last
// session goes, or another job needs its part. There is no better one to take its place, since each epoch takes every
// sample once. The lock of the store guards it.
class MemoryTier {
 public:
  // Longer entries are not kept: the system's page cache serves them about as fast.
  static constexpr size_t kMaxEntry = size_t{64} << 10;

  explicit MemoryTier(int64_t capacity) : capacity_(capacity) {}

  // Keeps a copy of an entry of this job, if it is small, known, and there is room or another of `jobs` has more than
  // its part.
  void Keep(std::map<JobId, KnownJob>* jobs, KnownJob* job, KnownPrefix* prefix, uint64_t sample,
            std::span<const std::byte> entry);

  // Lets go of an entry's copy.
  void Forget(KnownJob* job, KnownPrefix* prefix, KnownEntry* entry);
  void ForgetJob(KnownJob* job);
  // Takes note that a prefix goes with its entries.
  void PrefixGoes(KnownJob* job, const KnownPrefix& prefix);

  int64_t bytes() const { return bytes_; }
  // Returns what prefixes and jobs that went have set free since the last call.
  int64_t TakeFreed() { return std::exchange(freed_, 0); }

 private:
  bool MakeRoom(std::map<JobId, KnownJob>* jobs, const KnownJob& job, int64_t bytes);
  // Lets go of one entry of the least recently used prefix. Requires that there is one.
  void ForgetOne(KnownJob* job);
  void Count(KnownJob* job, int64_t bytes);

  const int64_t capacity_;
  int64_t bytes_ = 0;
  int64_t freed_ = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_MEMORY_TIER_H_
