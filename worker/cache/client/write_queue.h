#ifndef EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_
#define EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "worker/cache/client/attachment.h"
#include "worker/cache/client/cache_client.h"
#include "worker/cache/entry/entry_maker.h"
#include "worker/cache/entry/fingerprint.h"

namespace egeria::cache {

// Writes and forgets entries in order, on a thread of its own. Without a daemon writes are dropped, and what is to be
// forgotten is kept until it can be told. Prefixes are as StoredPrefix() says. Thread-safe.
class WriteQueue {
 public:
  // `attachment` outlives the queue.
  WriteQueue(const CacheClient::Options& options, Attachment* attachment);

  void Start();
  // Ends the thread, and drops what waits. Idempotent.
  void Stop();
  // This line is to be used from now on.
  void Follow(const Line& line);

  // Returns false where the entry is dropped, or refused because it is longer than any can be. `tensors` are copied.
  bool Offer(const Fingerprint& prefix, uint64_t sample, uint64_t input_hash, std::span<const EntryTensor> tensors);
  void Drop(const Fingerprint& prefix);
  void DropSamples(const Fingerprint& prefix, std::vector<uint64_t> samples);
  bool Flush(absl::Duration patience);

  CacheClient::WriteCounters counters() const;

 private:
  using Write = PendingEntry;
  struct Forget {
    Fingerprint prefix;
    std::vector<uint64_t> samples;  // none: the whole prefix
  };
  using Task = std::variant<Write, Forget>;

  // A batch is done at once: as many writes in a row as fit into one call, or one thing that is to be forgotten.
  struct Batch {
    Line line;
    std::vector<Write> writes;  // they have the same prefix
    std::optional<Forget> forget;
  };

  // Makes room in the queue for an offer, which is then to be pushed; false where there is none.
  bool Reserve(const Fingerprint& prefix, size_t bytes);
  void Push(Task task);
  void WorkUntilStopped();
  Batch TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteSome(const Line& line, std::vector<Write> writes);
  void Send(const Line& line, const Forget& forget);
  // Keeps what could not be told until there is a line again.
  void Owe(Forget forget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes Stop() cancel the call of this context. Returns false where Stop() has been called.
  bool Begin(grpc::ClientContext* context);

  const size_t queue_bytes_;
  Attachment& attachment_;
  EntryMaker maker_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Line line_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Forget> owed_ ABSL_GUARDED_BY(mutex_);
  CacheClient::WriteCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::optional<Fingerprint> too_long_ ABSL_GUARDED_BY(mutex_);  // the newest prefix whose entries were said to be
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_WRITE_QUEUE_H_
