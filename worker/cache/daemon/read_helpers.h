#ifndef EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_
#define EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/thread/mutex.h"

namespace egeria::cache {

// A few threads that help the calls of a daemon with what can be done by several at once. Thread-safe. Must outlive the
// calls of Run().
class ReadHelpers {
 public:
  // Half as many as the machine has processors, from one to kMaxThreads.
  ReadHelpers();
  explicit ReadHelpers(int threads);
  ~ReadHelpers();

  // Calls `body` on this thread, and at the same time on each helper that is idle before this one is done; returns
  // when all have returned.
  void Run(absl::FunctionRef<void()> body);

 private:
  static constexpr int kMaxThreads = 4;

  // A call of Run(); its numbers are guarded by mutex_.
  struct Job {
    absl::FunctionRef<void()> body;
    int helping = 0;
    int wanted = 0;
  };

  void HelpUntilStopped() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a job that wants more helpers, and counts this thread among them. Null once the helpers are to stop.
  Job* Join() ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<std::thread> threads_;  // constant after construction

  Mutex mutex_;
  CondVar changed_;
  std::deque<Job*> jobs_ ABSL_GUARDED_BY(mutex_);  // those that want more helpers
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_
