#ifndef EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_
#define EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/thread/mutex.h"
#include "worker/cache/client/attachment.h"
#include "worker/cache/client/cache_client.h"
#include "worker/cache/entry/entry_maker.h"
#include "worker/cache/entry/fingerprint.h"

namespace egeria::cache {

// A thread of its own writes entries and forgets them, in the order of the calls. Without a daemon writes are dropped,
// but for some seconds in the beginning, and requests to forget are kept until the daemon can be told. Prefixes are as
// StoredPrefix() says. Thread-safe.
class WriteQueue {
 public:
  // `attachment` must outlive the queue.
  WriteQueue(const CacheClient::Options& options, Attachment* attachment);

  void Start();
  // Ends the thread, and drops what waits. Idempotent.
  void Stop();
  // This line is to be used from now on.
  void Follow(const Line& line);

  // Copies the entries. Returns how many wait to be written; others are dropped, or refused because they are longer
  // than any can be.
  int64_t Offer(const Fingerprint& prefix, std::span<const CacheClient::Offered> entries);
  void Drop(const Fingerprint& prefix);
  void DropSamples(const Fingerprint& prefix, std::vector<uint64_t> samples);
  bool Flush(absl::Duration patience);

  CacheClient::WriteCounters counters() const;
  // Counts processor time of a thread that makes offers.
  void CountOffering(absl::Duration taken);

 private:
  using Write = PendingEntry;
  struct Forget {
    Fingerprint prefix;
    std::vector<uint64_t> samples;  // none: the whole prefix
  };
  using Task = std::variant<Write, Forget>;

  // One call to the daemon: as many writes in a row as fit into it, or one request to forget.
  struct Batch {
    Line line;
    std::vector<Write> writes;  // they have the same prefix
    std::optional<Forget> forget;
  };

  // Takes room in the queue for an offer, which is then to be pushed. False where there is none.
  bool Reserve(const Fingerprint& prefix, size_t bytes);
  // Moves the tasks to the end of the queue, and wakes the thread once.
  void Push(std::span<Task> tasks);
  void Push(Task task) { Push(std::span(&task, 1)); }
  void WorkUntilStopped();
  // Whether there is nothing left to do.
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (tasks_.empty() && !working_) || AwaitsFirstLine();
  }
  // Whether what is offered is kept for a daemon that has not come up yet.
  bool AwaitsFirstLine() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::chrono::steady_clock::now() < first_line_by_;
  }
  Batch TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteSome(const Line& line, std::vector<Write> writes);
  void Send(const Line& line, const Forget& forget);
  // Keeps a request that the daemon could not be told, until there is a line again.
  void Owe(Forget forget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes Stop() cancel the call of this context. Returns false where Stop() has been called.
  bool Begin(grpc::ClientContext* context);

  const size_t queue_bytes_;
  Attachment& attachment_;
  EntryMaker maker_;
  std::thread thread_;

  mutable Mutex mutex_;
  std::chrono::steady_clock::time_point first_line_by_ ABSL_GUARDED_BY(mutex_);  // past once there was one
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Line line_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Forget> owed_ ABSL_GUARDED_BY(mutex_);
  CacheClient::WriteCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::optional<Fingerprint> too_long_ ABSL_GUARDED_BY(mutex_);  // the newest prefix that a warning named
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_
