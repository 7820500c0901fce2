#ifndef EGERIA_WORKER_SESSION_SESSION_H_
#define EGERIA_WORKER_SESSION_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/accounting/time_ledger.h"
#include "worker/agent/agent.h"
#include "worker/freeze/gradient_reducer.h"
#include "worker/freeze/module_freezer.h"
#include "worker/session/frozen_forward.h"
#include "worker/session/gradient_meter.h"
#include "worker/session/plan_schedule.h"
#include "worker/session/rank_link.h"
#include "worker/session/session_metrics.h"

namespace egeria::worker {

// One change of the frozen prefix.
struct Switch {
  int64_t step = 0;  // optimizer steps done when it took effect
  bool unfreeze = false;
  int frozen_prefix = 0;
  bool ranks_identical = false;
  PlanId plan;  // 0: of a PlanSchedule
};

// What a session is made of. `freezer` and `reducer` belong to the caller and outlive it.
struct SessionParts {
  ModuleFreezer* freezer = nullptr;
  GradientReducer* reducer = nullptr;
  std::unique_ptr<Agent> agent;  // null: no controller, no samples
  PlanSchedule plans;            // used where there is no agent
  ProcessGroupPtr commit_group;  // gloo, of its own; null for a world of one
  // What a snapshot of each module consists of: the weights that its graph names.
  std::vector<std::vector<NamedTensor>> snapshot_tensors;
  c10::Device device = c10::kCPU;
  SessionMetrics* metrics = nullptr;
  std::unique_ptr<FrozenForward> frozen_forward;  // null: what is frozen is computed in each pass
  // Restored from a checkpoint.
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
};

// Ties a training loop to Egeria: samples the frontmost active module, answers snapshot requests, and
// applies plans at step boundaries, on all ranks at the same one.
//
//   for (;;) {
//     session->BeginStep();
//     loss = LossOf(session->Forward(input), 0, batch_size);
//     session->BeforeBackward(loss); loss.backward();
//     session->AfterBackward(LossOf); optimizer.step();
//     session->EndStep(loss, {learning_rate});   // optimizer.zero_grad() before or after
//   }
//
// Owned by the training thread, which never waits here for the network, the controller or the disk; where it
// waits it is for other ranks, as its own gradients do. Stop() ends it; the destructor calls it.
class Session {
 public:
  // Freezes what the checkpoint had frozen and builds the reducer.
  // Errors: those of ModuleFreezer::Apply() and GradientReducer::Rebuild().
  static absl::StatusOr<std::unique_ptr<Session>> Start(SessionParts parts);
  ~Session();

  // Starts the step that will be number step() + 1: decides whether it is sampled.
  void BeginStep();
  // Runs all layer modules, frozen ones without recording gradients. Exceptions of torch pass through.
  // `samples`: which they are, so that frozen modules may be skipped; null: not known.
  at::Tensor Forward(at::Tensor input, const BatchSamples* samples = nullptr);
  // Whether it helps to tell the samples of the batches to come, the next one first.
  bool ExpectsBatches() const { return frozen_forward_ != nullptr && frozen_forward_->in_use(); }
  void Expect(const std::vector<std::vector<uint64_t>>& batches) { frozen_forward_->Expect(batches); }
  void BeforeBackward(const at::Tensor& loss) { reducer_->BeforeBackward(loss); }
  // Before the optimizer's step: measures the gradients, where that is asked for. What fails is said once.
  void AfterBackward(const LossOfRows& loss);

  // After the optimizer's step: probe, snapshot, commit, switch, report. `loss` is a scalar of any device.
  // Errors: UNAVAILABLE [COMMIT_FAILED], [CHECKSUM_FAILED], [REDUCER_FAILED]: a rank is gone;
  // INTERNAL [PLAN_LOST] a committed plan cannot be found.
  absl::Status EndStep(const at::Tensor& loss, const std::vector<double>& learning_rates);

  // Rebuilds the reducer as a switch would, so that what follows depends on no more than a checkpoint has.
  absl::Status RebuildReducer();

  // Waits for the collective in flight, and ends the agent; `finished` tells the controller that training
  // has ended normally. Idempotent.
  absl::Status Stop(bool finished);

  int64_t step() const { return step_; }
  PlanId applied_plan() const { return link_.applied_plan(); }
  const std::vector<Switch>& switches() const { return switches_; }
  SessionTotals totals() const;
  // Of this process's time since Start().
  const TimeLedger& account() const { return account_; }

  // A hash of all parameters and of the frozen modules' buffers: what ranks must have in common between
  // steps. (Buffers of active modules are equal only during a forward pass; see GradientReducer.)
  uint64_t Hash() const;
  // A collective. Errors: UNAVAILABLE [CHECKSUM_FAILED].
  absl::StatusOr<bool> RanksIdentical() const;

 private:
  explicit Session(SessionParts parts);

  // Whether module `index` is to be captured in this step.
  bool Captures(int64_t index) const { return sampling_.has_value() && sampling_->first_module.value() == index; }
  at::Tensor RunModules(at::Tensor input, const BatchSamples* samples);
  void Capture(const at::Tensor& input);
  void Probe();
  void AnswerSnapshotRequest();
  void FollowPrefix();
  void AccountForCache();
  absl::Status CommitAndSwitch();
  absl::Status SwitchTo(int prefix, PlanId plan);

  ModuleFreezer* const freezer_;
  GradientReducer* const reducer_;
  const ProcessGroupPtr group_;
  const std::vector<std::vector<NamedTensor>> snapshot_tensors_;
  const std::unique_ptr<FrozenForward> frozen_forward_;
  RankLink link_;
  TimeLedger account_;
  double cache_spent_ = 0;  // seconds that are in the account
  int64_t step_;
  int restored_prefix_;
  std::optional<SamplingRequest> sampling_;  // of the step under way
  at::Tensor captured_;
  std::optional<GradientRequest> gradients_;  // of the step under way
  std::unique_ptr<GradientMeter> meter_;      // null: its gradients are not measured
  std::vector<Switch> switches_;
  bool probe_failed_ = false;  // said once, as the next two
  bool gradients_failed_ = false;
  bool small_batch_told_ = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_SESSION_H_
