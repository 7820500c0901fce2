#ifndef EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_
#define EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "worker/agent/upload.h"

namespace egeria::worker {

// Uploads that wait for the network, oldest first, bounded in bytes and in samples (readings are samples here).
// Samples make room for newer samples and for snapshots; snapshots only for newer versions. One upload at a time may be
// taken out; its bytes count until it is Done() or Return()ed. Pure; thread-compatible.
class UploadQueue {
 public:
  UploadQueue(size_t max_bytes, size_t max_samples) : max_bytes_(max_bytes), max_samples_(max_samples) {}

  // False, and counted as dropped, if there is no room for it even without the other samples.
  bool AddSample(Upload sample);

  // Replaces queued snapshots of older versions. False if it is of an older version than the newest one
  // added or wanted, if the same module and version is here already, or if there is no room for it even
  // without samples.
  bool AddSnapshot(Upload snapshot);

  // The version that the controller wants now, which may be lower than earlier ones if it has been restarted;
  // empty: none. Snapshots of all others are thrown away.
  void WantSnapshots(std::optional<int64_t> version);

  // The oldest upload. Requires that none is out.
  std::optional<Upload> Take();
  // The upload that was taken has been sent.
  void Done();
  // It was not: it is the first in line again, unless a newer snapshot or newer samples have replaced it.
  void Return(Upload upload);

  void Clear();
  // True while a snapshot of this module and version waits or is out.
  bool HoldsSnapshot(int64_t version, ModuleIndex module) const;

  size_t bytes() const { return bytes_; }
  size_t size() const { return queue_.size(); }
  int64_t samples_dropped() const { return samples_dropped_; }

 private:
  void DropSnapshotsExcept(int64_t version);
  // Drops the oldest samples until `bytes` and, if `another_sample`, one more sample fit.
  bool MakeRoom(size_t bytes, bool another_sample);
  bool DropOldestSample();

  const size_t max_bytes_;
  const size_t max_samples_;
  std::deque<Upload> queue_;
  size_t bytes_ = 0;    // queued and out
  size_t samples_ = 0;  // queued
  std::optional<size_t> out_bytes_;
  std::optional<Snapshot> out_snapshot_;  // without its tensors
  int64_t newest_version_ = -1;           // of the snapshots that are still of use
  int64_t samples_dropped_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_
