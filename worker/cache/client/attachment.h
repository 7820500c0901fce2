#ifndef EGERIA_WORKER_CACHE_CLIENT_ATTACHMENT_H_
#define EGERIA_WORKER_CACHE_CLIENT_ATTACHMENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/thread/mutex.h"
#include "egeria/v1/cache.grpc.pb.h"
#include "worker/cache/client/cache_client.h"
#include "worker/cache/entry/shared_memory.h"

namespace egeria::cache {

// Entries lie in shared memory one slot each.
inline constexpr size_t kSlotAlignment = 64;
constexpr size_t SlotOf(size_t entry_bytes) {
  return (entry_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// One call asks for no more samples than this.
inline constexpr size_t kMaxSamplesPerCall = 4'096;
// No longer entry is stored where entries are streamed; the daemon holds no more than 256 MiB for a call.
inline constexpr size_t kMaxStreamedRead = size_t{64} << 20;

// A session with the daemon, and the memory shared with it, which is null where bytes are streamed. One part of it is
// for each lookup that may be under way, the last one for writes.
struct Line {
  int64_t session = 0;  // 0: not attached
  std::shared_ptr<SharedMemory> memory;
  int64_t attachment = 0;  // numbers the lines; a daemon that was restarted begins anew with its sessions
  std::shared_ptr<v1::Cache::Stub> stub;  // for calls of this session; null: not attached

  size_t part() const {
    return memory->bytes().size() / (CacheClient::kMaxLookups + 1) / kSlotAlignment * kSlotAlignment;
  }
  size_t writes_begin() const { return CacheClient::kMaxLookups * part(); }
};

// How long a daemon that did not answer is left alone at first.
inline constexpr std::chrono::milliseconds kFirstPause{1'000};

// Attaches a job to the daemon, and anew whenever the daemon has ended or was given up. Thread-safe.
class Attachment {
 public:
  explicit Attachment(const CacheClient::Options& options) : options_(options) {}

  // Begins, on a thread of its own. `changed` is called with each new line, and with an empty one when it ends; one
  // after the other, and must not call back.
  void Start(std::function<void(const Line&)> changed);
  // Ends the thread and the line, within a second. Idempotent.
  void Stop();

  Line line() const;

  // Call it when the daemon has not answered in time: the line is not used any more, since the daemon may still be at
  // work in its memory. The next line comes after a while, which doubles each time until one has Answered(), so that a
  // daemon that is stopped or overloaded is hardly ever asked.
  void GiveUp(const Line& line);
  void Answered(const Line& line);

  int64_t count() const;  // how often attached
  bool streamed() const;  // the newest line shares no memory

 private:
  void AttachUntilStopped();
  void AttachOnce();
  std::shared_ptr<SharedMemory> MakeMemory();
  void Change(Line line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CacheClient::Options options_;
  std::function<void(const Line&)> changed_;
  bool told_of_streaming_ = false;
  bool told_of_quota_ = false;
  bool told_of_owner_ = false;

  std::thread thread_;

  mutable Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the call of this line, or of the one to come
  Line line_ ABSL_GUARDED_BY(mutex_);
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool streamed_ ABSL_GUARDED_BY(mutex_) = false;
  bool gave_up_ ABSL_GUARDED_BY(mutex_) = false;  // whether the last line was given up
  // How long to wait after the next line that is given up.
  std::chrono::milliseconds pause_ ABSL_GUARDED_BY(mutex_) = kFirstPause;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_ATTACHMENT_H_
