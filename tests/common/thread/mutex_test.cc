#include "common/thread/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace egeria {
namespace {

using std::chrono::steady_clock;

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, OneThreadHoldsItAtATime) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counter] {
      for (int n = 0; n < 1'000; ++n) {
        const MutexLock lock(&counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.value, 4'000);
}

TEST(CondVar, WaitEndsWithAChange) {
  Counter counter;
  std::thread other([&counter] {
    const MutexLock lock(&counter.mutex);
    counter.value = 1;
    counter.changed.NotifyAll();
  });
  {
    const MutexLock lock(&counter.mutex);
    while (counter.value == 0) counter.changed.Wait(&counter.mutex);
    EXPECT_EQ(counter.value, 1);
  }
  other.join();
}

TEST(CondVar, WaitUntilEndsAtItsDeadlineWithTheMutexHeld) {
  Counter counter;
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(20);
  const MutexLock lock(&counter.mutex);
  while (counter.changed.WaitUntil(&counter.mutex, deadline)) {
  }
  EXPECT_GE(steady_clock::now(), deadline);
  counter.value = 1;
}

}  // namespace
}  // namespace egeria
