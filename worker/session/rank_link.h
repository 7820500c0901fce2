#ifndef EGERIA_WORKER_SESSION_RANK_LINK_H_
#define EGERIA_WORKER_SESSION_RANK_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/thread/fork_guard.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"
#include "worker/freeze/named_tensor.h"
#include "worker/session/plan_schedule.h"
#include "worker/session/session_metrics.h"

namespace egeria::worker {

// The parts of a rank link.
struct RankLinkParts {
  std::unique_ptr<Agent> agent;  // null: there is no controller, and nothing is uploaded
  PlanSchedule plans;            // used where there is no agent
  ProcessGroupPtr commit_group;  // a group over gloo that nobody else uses; null for a world of one
  c10::Device device = c10::kCPU;
  int module_count = 0;
  SessionMetrics* metrics = nullptr;  // outlives the link
  // Restored from a checkpoint.
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
  int64_t total_steps = 0;  // steps of the whole training, the same on all ranks; 0: unknown
  WaitLimits limits;        // these hold for every wait for other ranks
};

// One rank's tie to the controller and to the other ranks, whatever its model is made of: what to sample and
// when, uploads from the training device, plans that take effect on all ranks at the same step, reports and
// totals. Session (C++) and the Python package run a training loop on it:
//
//   sampling = link.SamplingFor(step);             // step: the number of the one under way, from 1
//   ... forward, backward, the optimizer's step; link.Poll() ...
//   if (sampling) link.Offer(SampleOf(*sampling, step), inputs_and_gram);
//   if (auto gradients = link.GradientsFor(step)) link.Offer(GradientReading{...});
//   if (auto wanted = link.SnapshotWanted(step)) link.Offer(Snapshot{module, step, wanted->version}, weights);
//   if (plan = link.Commit(step)) { apply it; link.RecordSwitch(...); }
//   link.Report(step, loss, learning_rates, frozen_prefix);
//
// Owned by the training thread, which waits here for other ranks only, as its own gradients do. Stop() ends
// it; the destructor calls it. In a forked child every method does nothing, and the destructor leaks.
class RankLink {
 public:
  explicit RankLink(RankLinkParts parts);
  ~RankLink();

  bool has_controller() const;

  // The answer to "What are all ranks to sample at this step?" is the same on all of them, so that a probe may be a
  // collective. Nobody samples a module that is frozen or unknown, nor fewer than two samples.
  std::optional<SamplingRequest> SamplingFor(int64_t step) const;
  // The answer to "What are all ranks to take a snapshot of now?" is the same on all of them, too. A request comes
  // again after some steps while it has not been answered (no room, or a broken stream). Each call that gives a request
  // counts as an attempt to answer it.
  std::optional<SnapshotRequest> SnapshotWanted(int64_t step);
  // The controller has asked this rank for the result; other ranks need not compute what is no collective.
  bool IsAsked(const SamplingRequest& request) const;
  bool IsAsked(const SnapshotRequest& request) const;
  bool IsAsked(const GradientRequest& request) const;
  // The answer to "Of which modules are all ranks to tell the gradients?" is the same on all of them, too.
  std::optional<GradientRequest> GradientsFor(int64_t step) const;

  // Sends an upload, if the controller has asked this rank for it and there is room now; returns whether it is on its
  // way. `tensors`, on the training device, become those of the upload, with the values that they have at this point of
  // the current stream.
  //
  // A Sample takes inputs and, last, what the metric compares, in float32; they must not be changed in place
  // afterwards. A Snapshot takes weights, which may be changed afterwards; there is no room for it while an earlier
  // attempt is still on its way from the device. A GradientReading says what this rank knows of a step, is offered
  // before Commit(step) by every rank that knows something, and must be about all modules from first_module on. The
  // rank that is asked sends what all ranks know together, two steps later; alone a rank sends at once. A rank that
  // offers none does not hold up the others; there is no reading then.
  bool Offer(Upload upload, std::vector<NamedTensor> tensors = {});
  // Hands on what has arrived from the device, and never waits. It is called once a step.
  void Poll();

  // Returns the plan to apply at the boundary after `step`, which is the same on all ranks. It is called at every step.
  // A freeze that would come with the last of all steps waits for a step beyond it, since nothing may be left to save.
  // Errors: those of Committer::Tick(); INTERNAL [PLAN_LOST] a committed plan cannot be found;
  // FAILED_PRECONDITION [STEPS_DIFFER], on all ranks, once they have told each other that a rank was at another step.
  absl::StatusOr<std::optional<Plan>> Commit(int64_t step);
  // The plan in force.
  PlanId applied_plan() const;

  // Tells the controller about the step, when `loss`, a scalar of any device, has been computed; and brings the metrics
  // up to date. A tensor that is not one number (an undefined one, say) is no loss. StepReport explains
  // `zero_lr_prefix`.
  void Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates, int frozen_prefix,
              int zero_lr_prefix = 0);

  // These are counted for the totals.
  void RecordSwitch(bool unfreeze, bool identical);
  void RecordUndoneSwitch();
  void RecordDroppedSample();
  void SetModelTotals(double frozen_share, int64_t bytes_reduced);
  // So many layer modules from the first on do not train because the script, or an option, has frozen them.
  void SetFrozenByScript(int modules);
  // The next Report() tells the controller of it, too.
  void SetAccount(TimeTotals totals);
  void SetCacheTotals(CacheTotals totals);
  SessionTotals totals() const;
  AgentCounters counters() const;

  // Waits for the collective in flight (for `patience` at most), for the copies, and ends the agent; `finished`
  // tells the controller that training has ended normally. Idempotent. Errors: those of Committer::Stop(), after
  // which the agent has been ended all the same.
  absl::Status Stop(bool finished, std::chrono::milliseconds patience = std::chrono::milliseconds::max());

 private:
  struct State;
  // In a forked child: a link without a controller and without other ranks, for which there is nothing to do.
  State& state() const;

  const ForkGuard<State> own_;
  const std::unique_ptr<State> idle_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_RANK_LINK_H_
