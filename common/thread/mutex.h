#ifndef EGERIA_COMMON_THREAD_MUTEX_H_
#define EGERIA_COMMON_THREAD_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

// A mutex whose use clang checks (-Wthread-safety, see the preset `thread-safety`): fields that are
// ABSL_GUARDED_BY a Mutex can be touched, and functions that are ABSL_EXCLUSIVE_LOCKS_REQUIRED called, only
// while it is held.
//
// These classes are std::mutex and std::condition_variable with annotations. They do the same as absl::Mutex, but
// without two drawbacks. The thread sanitizer does not see into the system's library of absl::Mutex, and reports every
// field that it guards as a race. The waits of absl::Mutex end by the wall clock, which may be set back.
namespace egeria {

// Not recursive. Thread-safe.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for the length of a block.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Lets a thread that holds a mutex wait until another one has changed what it guards. A wait may end without any
// change, so that the caller looks again:
//   while (!done_) changed_.Wait(&mutex_);
// Thread-safe.
class CondVar {
 public:
  // Releases the mutex while it waits.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Waits no longer than to `deadline`. False if that has come.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace egeria

#endif  // EGERIA_COMMON_THREAD_MUTEX_H_
