#ifndef EGERIA_WORKER_COMMIT_WAIT_H_
#define EGERIA_WORKER_COMMIT_WAIT_H_

#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "worker/commit/process_group.h"

namespace egeria::worker {

// Limits bound how long a rank waits for others.
struct WaitLimits {
  // This is asked every tenth of a second while waiting; true ends the wait. Where it is empty nothing interrupts.
  std::function<bool()> interrupted;
  // After this the wait is given up. The group's own timeout bounds it in any case.
  std::chrono::milliseconds patience = std::chrono::milliseconds::max();
};

// Waits for a collective. When it returns CANCELLED or DEADLINE_EXCEEDED the collective is still under way.
// Errors: CANCELLED [INTERRUPTED]; DEADLINE_EXCEEDED [OTHER_RANKS_LATE]; UNAVAILABLE [RANK_GONE] with the
// reason, when the collective has failed.
absl::Status WaitFor(c10d::Work* work, const WaitLimits& limits);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_WAIT_H_
