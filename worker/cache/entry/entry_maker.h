#ifndef EGERIA_WORKER_CACHE_ENTRY_ENTRY_MAKER_H_
#define EGERIA_WORKER_CACHE_ENTRY_ENTRY_MAKER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "worker/cache/entry/entry.h"

namespace egeria::cache {

// The content of an entry that is yet to be made: copies of the tensors, so that the training goes on at once.
struct PendingEntry {
  PendingEntry(const Fingerprint& prefix, uint64_t sample, uint64_t input_hash, std::span<const EntryTensor> tensors);
  PendingEntry(PendingEntry&&) = default;  // the tensors stay where they are
  PendingEntry& operator=(PendingEntry&&) = default;

  Fingerprint prefix;
  uint64_t sample;
  uint64_t input_hash;
  std::vector<std::byte> values;
  std::vector<EntryTensor> tensors;  // they lie in `values`
  size_t exact_bytes;                // length of the entry, which no format makes longer
};

// Makes the entries of a job, and reports on the effect of their format. Thread-safe.
//
// An automatic format is exact as long as there is room for as much again as is kept: then more than this job has may
// come to lie in the quota, and nothing is won by compressing. From there on the next kTrial entries of each prefix are
// compressed ("zstd"), and all later ones if those take no more than kWorthwhile of their exact size.
class EntryMaker {
 public:
  // The effect of the format on entries of the newest prefix.
  struct Report {
    int64_t entries = 0;
    int64_t exact_bytes = 0;  // length of the entries in the exact format
    int64_t bytes = 0;
    RoundingError rounding;
  };

  static constexpr double kCrowded = 0.5;
  static constexpr int64_t kTrial = 32;
  static constexpr double kWorthwhile = 0.75;

  EntryMaker(JobId name, WantedFormat wanted) : name_(std::move(name)), wanted_(wanted) {}

  // Makes an entry. Logs the effect of the format once for each prefix, unless there is none.
  std::vector<std::byte> Make(PendingEntry entry);

  // So much of the quota is taken: 0..1.
  void NoteFullness(double fullness);

  Report report() const;

 private:
  StorageFormat Choose(const Fingerprint& prefix);
  void Tell(StorageFormat format, const Report& report) const;
  static double ShareOf(const Report& report);

  const JobId name_;
  const WantedFormat wanted_;

  mutable Mutex mutex_;
  Fingerprint prefix_ ABSL_GUARDED_BY(mutex_) = {};
  Report report_ ABSL_GUARDED_BY(mutex_);
  bool crowded_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_ENTRY_MAKER_H_
