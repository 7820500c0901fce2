#include "worker/cache/daemon/read_helpers.h"

#include <algorithm>

#include "common/thread/thread.h"

namespace egeria::cache {

ReadHelpers::ReadHelpers()
    : ReadHelpers(std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kMaxThreads)) {}

ReadHelpers::ReadHelpers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.push_back(StartThread("cache-helper", [this] { HelpUntilStopped(); }));
}

ReadHelpers::~ReadHelpers() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ReadHelpers::Run(absl::FunctionRef<void()> body) {
  Job job{.body = body, .wanted = static_cast<int>(threads_.size())};
  {
    const MutexLock lock(&mutex_);
    jobs_.push_back(&job);
  }
  changed_.NotifyAll();
  body();
  const MutexLock lock(&mutex_);
  std::erase(jobs_, &job);
  while (job.helping > 0) changed_.Wait(&mutex_);
}

ReadHelpers::Job* ReadHelpers::Join() {
  const MutexLock lock(&mutex_);
  while (!stopping_ && jobs_.empty()) changed_.Wait(&mutex_);
  if (stopping_) return nullptr;
  Job* const job = jobs_.front();
  ++job->helping;
  if (--job->wanted == 0) jobs_.pop_front();
  return job;
}

void ReadHelpers::HelpUntilStopped() {
  while (Job* const job = Join()) {
    job->body();
    const MutexLock lock(&mutex_);
    // All work that could be shared is done or taken.
    std::erase(jobs_, job);
    if (--job->helping == 0) changed_.NotifyAll();
  }
}

}  // namespace egeria::cache
