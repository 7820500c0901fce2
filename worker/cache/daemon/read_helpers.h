#ifndef EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_
#define EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/thread/mutex.h"

namespace egeria::cache {

// A few threads that help the calls of a daemon with work that several can do at once. Thread-safe. It must outlive the
// calls of Run().
class ReadHelpers {
 public:
  // Starts half as many threads as the machine has processors, at least one and at most kMaxThreads.
  ReadHelpers();
  explicit ReadHelpers(int threads);
  ~ReadHelpers();

  // Calls `body` on this thread, and at the same time on each helper that is idle before this thread is done. Returns
  // when all calls have returned.
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
  // Waits for a job that wants more helpers, and counts this thread among them. Returns null once the helpers are to
  // stop.
  Job* Join() ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<std::thread> threads_;  // constant after construction

  Mutex mutex_;
  CondVar changed_;
  std::deque<Job*> jobs_ ABSL_GUARDED_BY(mutex_);  // the jobs that want more helpers
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_READ_HELPERS_H_
