#ifndef EGERIA_WORKER_CACHE_DAEMON_FLUSH_TIMES_H_
#define EGERIA_WORKER_CACHE_DAEMON_FLUSH_TIMES_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/thread/mutex.h"
#include "common/thread/thread.h"
#include "rocksdb/listener.h"

namespace egeria::cache {

// Learns how much processor time RocksDB takes, on threads of its own, to write entries to files. Thread-safe.
class FlushTimes final : public rocksdb::EventListener {
 public:
  void OnFlushBegin(rocksdb::DB*, const rocksdb::FlushJobInfo&) override { begun_ = ThreadCpuTime(); }
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo& info) override {
    const absl::Duration taken = ThreadCpuTime() - begun_;
    const MutexLock lock(&mutex_);
    taken_ += taken;
    for (const rocksdb::BlobFileAdditionInfo& file : info.blob_file_addition_infos) {
      bytes_ += static_cast<double>(file.total_blob_bytes);
    }
  }

  // So far; 0 before anything was written.
  double seconds_per_byte() const {
    const MutexLock lock(&mutex_);
    return bytes_ > 0 ? absl::ToDoubleSeconds(taken_) / bytes_ : 0;
  }

 private:
  inline static thread_local absl::Duration begun_;

  mutable Mutex mutex_;
  absl::Duration taken_ ABSL_GUARDED_BY(mutex_);
  double bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_FLUSH_TIMES_H_
