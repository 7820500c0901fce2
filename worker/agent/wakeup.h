#ifndef EGERIA_WORKER_AGENT_WAKEUP_H_
#define EGERIA_WORKER_AGENT_WAKEUP_H_

#include <chrono>

#include "common/thread/mutex.h"

namespace egeria::worker {

using SteadyTime = std::chrono::steady_clock::time_point;

// Wakes one waiting thread from any other. A notification is kept until the waiter has seen it, so that none
// is lost between its looking for work and its going to sleep. Thread-safe.
class Wakeup {
 public:
  void Notify() {
    const MutexLock lock(&mutex_);
    notified_ = true;
    condition_.NotifyOne();
  }

  // Returns once there was a notification since the last return, or at `deadline`.
  void WaitUntil(SteadyTime deadline) {
    const MutexLock lock(&mutex_);
    while (!notified_ && condition_.WaitUntil(&mutex_, deadline)) {
    }
    notified_ = false;
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_WAKEUP_H_
