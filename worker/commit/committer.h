#ifndef EGERIA_WORKER_COMMIT_COMMITTER_H_
#define EGERIA_WORKER_COMMIT_COMMITTER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/commit/process_group.h"

namespace egeria::worker {

// Agrees, among the ranks of a job, on the step at which a plan takes effect.
//
// At every step boundary each rank advertises its contiguous watermark in an asynchronous all_reduce(MIN);
// the result is taken at the next boundary. As the reduced value is the same everywhere and every rank
// reads it at the same boundary, all ranks apply the same plan at the same step. While one rank lacks a plan,
// the minimum stays under it and nobody applies it. A world of one needs no group and applies at once.
//
// Owned by the training thread; every rank must call Tick() once per step and Stop() once at the end.
// The collective of the last Tick() is in flight until Stop(), so nothing else may be destroyed before it.
class Committer {
 public:
  // `group`: a gloo group of its own; who else uses it must do so at the same point on all ranks, as
  // collectives are told apart by their order. Null for a world of one. `applied`: the plan in force now, the same on all ranks.
  Committer(ProcessGroupPtr group, PlanId applied);
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // Takes the result of the previous tick and starts the next one. Returns the plan that every rank is to
  // apply at this boundary, if there is one; it is then counted as applied.
  // Errors: UNAVAILABLE [COMMIT_FAILED] a rank is gone or the group's timeout has passed: the collectives of
  // training fail for the same reason. No plan is applied any more.
  absl::StatusOr<std::optional<PlanId>> Tick(PlanId watermark);

  // The plan in force.
  PlanId applied() const { return applied_; }

  // Waits for the tick in flight, which every rank has started. Idempotent. Errors: as Tick().
  absl::Status Stop();

 private:
  absl::StatusOr<PlanId> Finish();

  const ProcessGroupPtr group_;
  PlanId applied_;
  at::Tensor value_;                     // of the reduction in flight
  c10::intrusive_ptr<c10d::Work> work_;  // null: none in flight
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_COMMITTER_H_
