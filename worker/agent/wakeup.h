#ifndef EGERIA_WORKER_AGENT_WAKEUP_H_
#define EGERIA_WORKER_AGENT_WAKEUP_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace egeria::worker {

using SteadyTime = std::chrono::steady_clock::time_point;

// Wakes one waiting thread from any other. A notification is kept until the waiter has seen it, so that none
// is lost between its looking for work and its going to sleep. Thread-safe.
class Wakeup {
 public:
  void Notify() {
    std::lock_guard<std::mutex> lock(mutex_);
    notified_ = true;
    condition_.notify_one();
  }

  // Returns once there was a notification since the last return, or at `deadline`.
  void WaitUntil(SteadyTime deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    condition_.wait_until(lock, deadline, [this] { return notified_; });
    notified_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool notified_ = false;  // guarded by mutex_
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_WAKEUP_H_
