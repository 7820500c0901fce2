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
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReadHelpers::Run(absl::FunctionRef<void()> body) {
  Job job{.body = body, .wanted = static_cast<int>(threads_.size())};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(&job);
  }
  changed_.notify_all();
  body();
  std::unique_lock<std::mutex> lock(mutex_);
  std::erase(jobs_, &job);
  changed_.wait(lock, [&job] { return job.helping == 0; });
}

void ReadHelpers::HelpUntilStopped() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    Job* const job = jobs_.front();
    ++job->helping;
    if (--job->wanted == 0) jobs_.pop_front();
    lock.unlock();
    job->body();
    lock.lock();
    // What there was to share is done or taken.
    std::erase(jobs_, job);
    if (--job->helping == 0) changed_.notify_all();
  }
}

}  // namespace egeria::cache
