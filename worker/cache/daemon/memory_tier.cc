#include "worker/cache/daemon/memory_tier.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace egeria::cache {

void MemoryTier::Keep(std::map<JobId, KnownJob>* jobs, KnownJob* job, KnownPrefix* prefix, uint64_t sample,
                      std::span<const std::byte> entry) {
  const auto known = prefix->entries.find(sample);
  if (known == prefix->entries.end() || known->second.bytes != nullptr || known->second.length != entry.size()) return;
  const int64_t cost = static_cast<int64_t>(entry.size()) + kOverhead;
  if (entry.size() > kMaxEntry || job->attached <= 0 || !MakeRoom(jobs, *job, cost)) return;
  const auto bytes = std::make_shared_for_overwrite<std::byte[]>(entry.size());
  std::memcpy(bytes.get(), entry.data(), entry.size());
  known->second.bytes = bytes;
  prefix->in_memory.push_back(sample);
  prefix->memory_bytes += cost;
  Count(job, cost);
}

void MemoryTier::Forget(KnownJob* job, KnownPrefix* prefix, KnownEntry* entry) {
  if (entry->bytes == nullptr) return;
  const int64_t cost = entry->length + kOverhead;
  entry->bytes.reset();
  prefix->memory_bytes -= cost;
  Count(job, -cost);
}

void MemoryTier::ForgetJob(KnownJob* job) {
  freed_ += job->memory_bytes;
  while (job->memory_bytes > 0) ForgetOne(job);
}

void MemoryTier::PrefixGoes(KnownJob* job, const KnownPrefix& prefix) {
  freed_ += prefix.memory_bytes;
  Count(job, -prefix.memory_bytes);
}

bool MemoryTier::MakeRoom(std::map<JobId, KnownJob>* jobs, const KnownJob& job, int64_t bytes) {
  while (bytes_ + bytes > capacity_) {
    const auto fullest =
        std::ranges::max_element(*jobs, {}, [](const auto& other) { return other.second.memory_bytes; });
    if (fullest->second.memory_bytes <= job.memory_bytes + bytes) return false;
    ForgetOne(&fullest->second);
  }
  return true;
}

void MemoryTier::ForgetOne(KnownJob* job) {
  KnownPrefix* oldest = nullptr;
  for (auto& [fingerprint, prefix] : job->prefixes) {
    if (prefix.memory_bytes > 0 && (oldest == nullptr || prefix.last_used < oldest->last_used)) oldest = &prefix;
  }
  for (bool forgotten = false; !forgotten;) {
    const auto entry = oldest->entries.find(oldest->in_memory.back());
    oldest->in_memory.pop_back();
    forgotten = entry != oldest->entries.end() && entry->second.bytes != nullptr;
    if (forgotten) Forget(job, oldest, &entry->second);
  }
}

void MemoryTier::Count(KnownJob* job, int64_t bytes) {
  job->memory_bytes += bytes;
  bytes_ += bytes;
}

}  // namespace egeria::cache
