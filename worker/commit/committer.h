#ifndef EGERIA_WORKER_COMMIT_COMMITTER_H_
#define EGERIA_WORKER_COMMIT_COMMITTER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/commit/async_all_reduce.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// Agrees, among the ranks of a job, on the step at which a plan takes effect.
//
// At a step boundary each rank advertises its contiguous watermark in an asynchronous all_reduce(MIN); the result is
// taken at the next boundary. As the reduced value is the same everywhere and every rank reads it at the same
// boundary, all ranks apply the same plan at the same step. While one rank lacks a plan, the minimum stays under it
// and nobody applies it. A world of one needs no group and applies at once. Other numbers may ride along; every rank
// learns their minima over all ranks. Boundaries at which the ranks have nothing to tell each other may be left out.
//
// It is owned by the training thread. Every rank must call Tick() once per step and Stop() once at the end.
// The collective of the last Tick() is in flight until Stop(), so nothing else may be destroyed before it.
class Committer {
 public:
  // `group` is a gloo group of its own, null for a world of one. Who else uses it must do so at the same point on
  // all ranks, as collectives are told apart by their order. `applied` is the plan in force now, the same on all
  // ranks. `limits` bound each wait for other ranks.
  Committer(ProcessGroupPtr group, PlanId applied, WaitLimits limits = {});
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // Given the minima of what was advertised at the boundary before, the watermark and then what rode along (empty:
  // nothing was), Riders returns the numbers for this one, as many every time and on every rank; or nothing, on all
  // ranks alike: nothing is advertised at this boundary. It is not called in a world of one.
  using Riders = std::function<std::optional<std::vector<int64_t>>(const std::vector<int64_t>& minima)>;

  // Takes the result of what was advertised at the boundary before, and advertises `watermark` and what `riders` gives.
  // Returns the plan that every rank is to apply at this boundary, if there is one; it is then counted as applied.
  // Errors: UNAVAILABLE [COMMIT_FAILED] a rank is gone or the group's timeout has passed: the collectives of
  // training fail for the same reason. No plan is applied any more.
  // CANCELLED [INTERRUPTED], DEADLINE_EXCEEDED [OTHER_RANKS_LATE]: as the limits say; nothing was started,
  // and the same call may be made again.
  absl::StatusOr<std::optional<PlanId>> Tick(PlanId watermark, const Riders& riders = {});

  // Returns the plan in force.
  PlanId applied() const { return applied_; }

  // Waits for the tick in flight, which every rank has started, at most for `patience`. One that does not end
  // is left behind, with its group: the group's destructor would wait for it. It is idempotent. Errors: as Tick().
  absl::Status Stop(std::chrono::milliseconds patience = std::chrono::milliseconds::max());

 private:
  // Counts `agreed` as applied, if it is newer than what is.
  std::optional<PlanId> Apply(PlanId agreed);

  const bool alone_;
  const WaitLimits limits_;
  PlanId applied_;
  AsyncAllReduce reduction_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_COMMITTER_H_
