#ifndef EGERIA_WORKER_COMMIT_COMMITTER_H_
#define EGERIA_WORKER_COMMIT_COMMITTER_H_

#include <cstddef>
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

// The content of a plan, as far as ranks must have the same.
struct PlanContent {
  int64_t generation = 0;
  int64_t frozen_prefix = -1;  // -1: the plan is void, since this rank lacks it and need not wait for it

  bool is_void() const { return frozen_prefix < 0; }
  bool operator==(const PlanContent&) const = default;
};

// The plans that a rank has received.
struct HeldPlans {
  PlanId watermark;  // it has every plan up to this one
  // Returns what a plan says that is not in force yet and at or under the watermark.
  std::function<PlanContent(PlanId)> content;
};

// Agrees, among the ranks of a job, on the step at which a plan takes effect.
//
// At a step boundary each rank advertises its contiguous watermark in an asynchronous all_reduce(MIN), and what a plan
// says; the result is taken at the next boundary. As the reduced numbers are the same everywhere and every rank reads
// them at the same boundary, all ranks apply the same plan at the same step. While one rank lacks a plan, the minimum
// stays under it and nobody applies it. A plan that does not say the same on all ranks is dropped, and they tell each
// other what each has: a controller that lost its journal gives an id anew, and so does a second controller.
//
// A world of one needs no group and applies at once. Other numbers may ride along; every rank learns their minima over
// all ranks. Boundaries at which the ranks have nothing to tell each other may be left out.
//
// It is owned by the training thread. Every rank must call Tick() once per step and Stop() once at the end.
// The collective of the last Tick() is in flight until Stop(), so nothing else may be destroyed before it.
class Committer {
 public:
  // A plan that was dropped, and what each rank has of it.
  struct Dispute {
    PlanId plan;
    std::vector<PlanContent> by_rank;
  };

  struct Outcome {
    std::optional<PlanId> apply;     // every rank is to apply this plan at this boundary; it then counts as applied
    std::optional<Dispute> dispute;  // it comes one or more boundaries after the drop
  };

  // `group` is a gloo group of its own, null for a world of one. Who else uses it must do so at the same point on
  // all ranks, as collectives are told apart by their order. `applied` is the plan in force now, the same on all
  // ranks. `limits` bound each wait for other ranks.
  Committer(ProcessGroupPtr group, PlanId applied, WaitLimits limits = {});
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // Given the minima of what rode along at the boundary before (empty: nothing was advertised), Riders returns the
  // numbers for this one, as many every time and on every rank; or nothing, on all ranks alike: nothing is advertised
  // at this boundary. It is not called in a world of one.
  using Riders = std::function<std::optional<std::vector<int64_t>>(const std::vector<int64_t>& minima)>;

  // Takes the result of what was advertised at the boundary before, and advertises what this rank holds and what
  // `riders` gives.
  // Errors: UNAVAILABLE [COMMIT_FAILED] a rank is gone or the group's timeout has passed: the collectives of
  // training fail for the same reason. No plan is applied any more.
  // CANCELLED [INTERRUPTED], DEADLINE_EXCEEDED [OTHER_RANKS_LATE]: as the limits say; nothing was started,
  // and the same call may be made again.
  absl::StatusOr<Outcome> Tick(const HeldPlans& held, const Riders& riders = {});

  // Returns the plan in force.
  PlanId applied() const { return applied_; }

  // Returns whether all ranks had the same plans when they last told each other, and none is under way. It is the same
  // on all ranks.
  bool settled() const { return settled_; }

  // Waits for the tick in flight, which every rank has started, at most for `patience`. One that does not end
  // is left behind, with its group: the group's destructor would wait for it. It is idempotent. Errors: as Tick().
  absl::Status Stop(std::chrono::milliseconds patience = std::chrono::milliseconds::max());

 private:
  // Takes the minima of what the ranks have advertised of plans. Returns how many numbers that were.
  size_t Hear(const int64_t* minima, Outcome* outcome);
  std::vector<int64_t> Advertise(const HeldPlans& held) const;

  const bool alone_;
  const int rank_;
  const int ranks_;
  const WaitLimits limits_;
  PlanId applied_;
  PlanId passed_;  // the newest plan that was applied or dropped
  // The plan that ranks tell the content of, since all are known to have it; empty: each tells of its newest one.
  std::optional<PlanId> asked_;
  std::optional<PlanId> disputed_;  // dropped, and the ranks have not told each other what they have
  bool settled_ = false;
  AsyncAllReduce reduction_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_COMMITTER_H_
