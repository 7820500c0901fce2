#include "tests/support/ranks.h"

#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/thread/thread.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace egeria::testing {

void RunRanks(int count, const std::function<void(const worker::GroupMember&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.push_back(StartThread("rank", [&body, store, rank, count] { body({store, rank, count}); }));
  }
  for (std::thread& thread : threads) thread.join();
}

worker::ProcessGroupPtr GlooGroup(const worker::GroupMember& member, const std::string& name,
                                  std::chrono::milliseconds timeout) {
  absl::StatusOr<worker::ProcessGroupPtr> group = worker::MakeGlooGroup(member, name, timeout);
  EGERIA_CHECK(group.ok());
  return *std::move(group);
}

}  // namespace egeria::testing
