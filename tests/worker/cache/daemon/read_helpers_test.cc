#include "worker/cache/daemon/read_helpers.h"

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

TEST(ReadHelpersTest, EverythingIsDoneOnceByAllThatCall) {
  ReadHelpers helpers(2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&helpers] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::atomic<int>> done(50);
        std::atomic<size_t> next{0};
        helpers.Run([&] {
          for (size_t i = next++; i < done.size(); i = next++) ++done[i];
        });
        for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ReadHelpersTest, HelpersWorkAtTheSameTime) {
  ReadHelpers helpers(2);
  std::latch all(3);
  helpers.Run([&] { all.arrive_and_wait(); });  // none of them could pass it alone
}

TEST(ReadHelpersTest, WithoutHelpersTheCallerDoesItAlone) {
  ReadHelpers helpers(0);
  int calls = 0;
  helpers.Run([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace egeria::cache
