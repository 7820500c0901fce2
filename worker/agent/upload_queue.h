#ifndef EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_
#define EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "worker/agent/upload.h"

namespace egeria::worker {

// The uploads that wait for the network, oldest first, bounded in bytes and in samples; every upload but a snapshot is
// a sample here. Samples make room for newer samples and for snapshots; snapshots only for newer versions. One upload
// at a time may be taken out; its bytes count until it is Done() or Return()ed. Pure; thread-compatible.
class UploadQueue {
 public:
  UploadQueue(size_t max_bytes, size_t max_samples) : max_bytes_(max_bytes), max_samples_(max_samples) {}

  // Returns whether the upload is queued. There may be no room for it even without the samples; a sample then counts as
  // dropped. A snapshot replaces queued ones of older versions; it is not queued if it is older itself than the newest
  // one added or wanted, or if the same module and version is here already.
  bool Add(Upload upload);

  // The version that the controller wants now, which may be lower than earlier ones if it has been restarted; empty:
  // none is wanted. Snapshots of all other versions are thrown away.
  void WantSnapshots(std::optional<int64_t> version);

  // The oldest upload. Requires that none is out.
  std::optional<Upload> Take();
  // The upload that was taken has been sent.
  void Done();
  // The upload that was taken has not been sent: it is the first in line again, unless a newer snapshot or newer
  // samples have replaced it.
  void Return(Upload upload);

  void Clear();
  // True while a snapshot of this module and version waits or is out.
  bool HoldsSnapshot(int64_t version, ModuleIndex module) const;

  size_t bytes() const { return bytes_; }
  size_t size() const { return queue_.size(); }
  int64_t samples_dropped() const { return samples_dropped_; }

 private:
  bool AddSample(Upload sample);
  bool AddSnapshot(Upload snapshot);
  void DropSnapshotsExcept(int64_t version);
  // Drops the oldest samples until `bytes` and, if `another_sample`, one more sample fit.
  bool MakeRoom(size_t bytes, bool another_sample);
  bool DropOldestSample();

  const size_t max_bytes_;
  const size_t max_samples_;
  std::deque<Upload> queue_;
  size_t bytes_ = 0;    // the bytes of all uploads that are queued or out
  size_t samples_ = 0;  // in the queue
  std::optional<size_t> out_bytes_;
  std::optional<Snapshot> out_snapshot_;  // without its tensors
  int64_t newest_version_ = -1;           // the version of snapshots that is still of use
  int64_t samples_dropped_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_UPLOAD_QUEUE_H_
