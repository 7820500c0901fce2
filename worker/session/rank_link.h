#ifndef EGERIA_WORKER_SESSION_RANK_LINK_H_
#define EGERIA_WORKER_SESSION_RANK_LINK_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"
#include "worker/freeze/named_tensor.h"
#include "worker/session/gradient_exchange.h"
#include "worker/session/plan_schedule.h"
#include "worker/session/session_metrics.h"

namespace egeria::worker {

// What a rank link is made of.
struct RankLinkParts {
  std::unique_ptr<Agent> agent;  // null: no controller, no samples
  PlanSchedule plans;            // used where there is no agent
  ProcessGroupPtr commit_group;  // gloo, of its own; null for a world of one
  c10::Device device = c10::kCPU;
  int module_count = 0;
  SessionMetrics* metrics = nullptr;  // outlives the link
  // Restored from a checkpoint.
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
  WaitLimits limits;  // of every wait for other ranks
};

// One rank's tie to the controller and to the other ranks, whatever its model is made of: what to sample and
// when, uploads from the training device, plans that take effect on all ranks at the same step, reports and
// totals. Session (C++) and the Python package run a training loop on it:
//
//   sampling = link.SamplingFor(step);             // step: the number of the one under way, from 1
//   ... forward, backward, the optimizer's step; link.Poll() ...
//   if (sampling) link.OfferSample(*sampling, step, inputs, gram);
//   if (auto gradients = link.GradientsFor(step)) link.OfferGradients(*gradients, step, squares);
//   if (auto wanted = link.SnapshotWanted(step)) link.OfferSnapshot(*wanted, module, step, weights);
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

  // What all ranks are to sample at this step: the same on all of them, so that a probe may be a collective.
  // None for a module that is frozen or unknown, nor for fewer than two samples.
  std::optional<SamplingRequest> SamplingFor(int64_t step) const;
  // What all ranks are to take a snapshot of now: the same on all of them. The same request comes again after
  // some steps while it has not been answered (no room, or a broken stream). Counts as an attempt to answer.
  std::optional<SnapshotRequest> SnapshotWanted(int64_t step);
  // Whether the controller has asked this rank for the result; others need not compute what is no collective.
  bool IsAsked(const SamplingRequest& request) const;
  bool IsAsked(const SnapshotRequest& request) const;
  bool IsAsked(const GradientRequest& request) const;
  // Of which modules all ranks are to tell the gradients of this step: the same on all of them.
  std::optional<GradientRequest> GradientsFor(int64_t step) const;

  // Sends a sample: the inputs of first_module and what the metric compares of module's output, in float32, as they are
  // at this point of the current stream; not to be changed in place afterwards. False, and counted as
  // dropped, if there is no room now; false for a rank that is not asked.
  bool OfferSample(const SamplingRequest& request, int64_t step, std::vector<NamedTensor> inputs,
                   const at::Tensor& compared);
  // Sends what a probe of a module with a local reference gave: the distance. False if there is no room now, and
  // for a rank that is not asked.
  bool OfferReading(const SamplingRequest& request, int64_t step, double plasticity);
  // Tells what this rank knows of the gradients of `step`, of the modules asked for, before Commit(step). What all
  // ranks know together is sent by the one that is asked, two steps later; alone a rank sends at once. False if it
  // cannot be used. A rank that offers nothing does not hold up the others; there is no reading then.
  bool OfferGradients(const GradientRequest& request, int64_t step, GradientSquares own);
  // Sends the weights of one module, as they are at this point of the current stream; they may be changed
  // afterwards. None of a module with a local reference. False if it cannot be sent, or an earlier attempt is
  // still on its way from the device.
  bool OfferSnapshot(const SnapshotRequest& request, ModuleIndex module, int64_t step,
                     std::vector<NamedTensor> tensors);
  // Hands on what has arrived from the device; never waits. Once a step.
  void Poll();

  // The plan to apply at the boundary after `step`, on all ranks the same. To be called at every step.
  // Errors: those of Committer::Tick(); INTERNAL [PLAN_LOST] a committed plan cannot be found;
  // FAILED_PRECONDITION [STEPS_DIFFER], on all ranks, once they have told each other that a rank was at another step.
  absl::StatusOr<std::optional<Plan>> Commit(int64_t step);
  // The plan in force.
  PlanId applied_plan() const;

  // Tells the controller about the step, when `loss`, a scalar of any device, has been computed; and brings
  // the metrics up to date. What is not one number (an undefined tensor, say) is no loss. `zero_lr_prefix` as StepReport
  // has it.
  void Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates, int frozen_prefix,
              int zero_lr_prefix = 0);

  // For the totals.
  void RecordSwitch(bool unfreeze, bool identical);
  void RecordDroppedSample();
  void SetModelTotals(double frozen_share, int64_t bytes_reduced);
  // For the controller, too, with the next Report().
  void SetAccount(AccountTotals totals);
  void SetCacheTotals(CacheTotals totals);
  SessionTotals totals() const;
  AgentCounters counters() const;

  // Waits for the collective in flight (for `patience` at most), for the copies, and ends the agent; `finished`
  // tells the controller that training has ended normally. Idempotent. Errors: those of Committer::Stop(), after
  // which the agent has been ended all the same.
  absl::Status Stop(bool finished, std::chrono::milliseconds patience = std::chrono::milliseconds::max());

 private:
  struct State;
  bool InChild() const;

  const pid_t pid_;
  std::unique_ptr<State> state_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_RANK_LINK_H_
