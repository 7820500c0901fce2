#ifndef EGERIA_TESTS_SUPPORT_RANKS_H_
#define EGERIA_TESTS_SUPPORT_RANKS_H_

#include <functional>

#include "worker/commit/process_group.h"

namespace egeria::testing {

// Runs `body` as each of `count` ranks, in threads of this process with a store in memory, and waits for all.
// A rank that fails its test must still take part in every collective, or the others wait for it.
void RunRanks(int count, const std::function<void(const worker::GroupMember&)>& body);

// A gloo group of the member's; ends the process if there is none.
worker::ProcessGroupPtr GlooGroup(const worker::GroupMember& member, const std::string& name,
                                  std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_RANKS_H_
