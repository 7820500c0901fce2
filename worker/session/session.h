#ifndef EGERIA_WORKER_SESSION_SESSION_H_
#define EGERIA_WORKER_SESSION_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
#include "worker/session/fused_prefix.h"
#include "worker/session/gradient_meter.h"
#include "worker/session/plan_schedule.h"
#include "worker/session/rank_link.h"
#include "worker/session/session_metrics.h"

namespace egeria::worker {

// A Switch is one change of the frozen prefix.
struct Switch {
  int64_t step = 0;  // optimizer steps done when it took effect
  bool unfreeze = false;
  int frozen_prefix = 0;
  bool ranks_identical = false;
  PlanId plan;  // 0 if a PlanSchedule asked for it
};

// A session is made of these. `freezer` and `reducer` belong to the caller and outlive it.
struct SessionParts {
  ModuleFreezer* freezer = nullptr;
  GradientReducer* reducer = nullptr;
  std::unique_ptr<Agent> agent;  // null without a controller: there are no samples then
  PlanSchedule plans;            // used where there is no agent
  ProcessGroupPtr commit_group;  // a gloo group of its own; null for a world of one
  // A snapshot of each module consists of the weights that its graph names.
  std::vector<std::vector<NamedTensor>> snapshot_tensors;
  c10::Device device = c10::kCPU;
  SessionMetrics* metrics = nullptr;
  std::unique_ptr<FrozenForward> frozen_forward;  // null: each pass computes what is frozen
  std::unique_ptr<FusedPrefix> fused;             // null: what is frozen is computed to the bit
  // Gives every rank what rank 0 has, of model and optimizer; a collective. Null: ranks that differ end the training.
  std::function<absl::Status()> resync;
  int64_t total_steps = 0;  // steps of the whole training; 0: unknown
  int freeze_first = 0;     // so many modules are frozen from the first step to the last, whatever anybody decides
  // A checkpoint gives these three.
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
};

// Ties a training loop to Egeria: samples the frontmost active module, answers snapshot requests, and
// applies plans at step boundaries, on all ranks at the same one. A switch happens on all ranks or on none; after one
// that could not be made nothing freezes or unfreezes any more, and the training goes on.
//
//   for (;;) {
//     session->BeginStep();
//     loss = LossOf(session->Forward(input));
//     session->BeforeBackward(loss); loss.backward();
//     session->AfterBackward(); optimizer.step();
//     session->EndStep(loss, {learning_rate});   // optimizer.zero_grad() may come before or after it
//   }
//
// It is owned by the training thread, which never waits here for the network, the controller or the disk. Where the
// thread waits it is for other ranks, as its own gradients do. Stop() ends it; the destructor calls it.
class Session {
 public:
  // Freezes what the checkpoint had frozen and builds the reducer.
  // Errors: those of ModuleFreezer::Apply() and GradientReducer::Rebuild().
  static absl::StatusOr<std::unique_ptr<Session>> Start(SessionParts parts);
  ~Session();

  // Starts the step that will be number step() + 1: decides whether it is sampled.
  void BeginStep();
  // Runs all layer modules, frozen ones without recording gradients. Exceptions of torch pass through.
  // `samples` tells which samples they are, so that frozen modules may be skipped; null: nobody knows.
  at::Tensor Forward(at::Tensor input, const BatchSamples* samples = nullptr);
  // Returns whether it helps to tell the samples of the batches to come, the next one first.
  bool ExpectsBatches() const { return frozen_forward_ != nullptr && frozen_forward_->in_use(); }
  void Expect(const std::vector<std::vector<uint64_t>>& batches) { frozen_forward_->Expect(batches); }
  // Runs all layer modules as they are set now, outside of training and without recording gradients.
  at::Tensor Evaluate(at::Tensor input);
  void BeforeBackward(const at::Tensor& loss) { reducer_->BeforeBackward(loss); }
  // Measures the gradients where that is asked for, before the optimizer's step. A failure is logged once.
  void AfterBackward();

  // Probes, answers snapshot requests, commits, switches and reports, after the optimizer's step. `loss` is a scalar of
  // any device. `zero_lr_prefix` says how many of the first modules no optimizer changes, as StepReport has it.
  // Errors: UNAVAILABLE [COMMIT_FAILED], [CHECKSUM_FAILED], [REDUCER_FAILED] a rank is gone;
  // INTERNAL [PLAN_LOST] a committed plan cannot be found; FAILED_PRECONDITION [RANKS_DIFFER], on all ranks, their
  // parameters came apart while something was frozen or at a switch, and there is no `resync`, or it did not help.
  absl::Status EndStep(const at::Tensor& loss, const std::vector<double>& learning_rates, int zero_lr_prefix = 0);

  // Rebuilds the reducer as a switch would, so that what follows depends on no more than a checkpoint has.
  absl::Status RebuildReducer();

  // Waits for the collective in flight, and ends the agent; `finished` tells the controller that training
  // has ended normally. It is idempotent.
  absl::Status Stop(bool finished);

  int64_t step() const { return step_; }
  PlanId applied_plan() const { return link_.applied_plan(); }
  const std::vector<Switch>& switches() const { return switches_; }
  SessionTotals totals() const;
  // The account covers this process's time since Start().
  const TimeLedger& account() const { return account_; }

  // Hashes all parameters and the frozen modules' buffers, which ranks must have in common between
  // steps. (Buffers of active modules are equal only during a forward pass; see GradientReducer.)
  uint64_t Hash() const;
  // Compares the ranks' hashes. It is a collective. Errors: UNAVAILABLE [CHECKSUM_FAILED].
  absl::StatusOr<bool> RanksIdentical() const;

 private:
  explicit Session(SessionParts parts);

  // Returns whether this step captures the input of module `index`.
  bool Captures(int64_t index) const { return sampling_.has_value() && sampling_->first_module.value() == index; }
  at::Tensor RunModules(at::Tensor input, const BatchSamples* samples);
  void Capture(const at::Tensor& input);
  void Probe();
  void AnswerSnapshotRequest();
  void FollowPrefix();
  void AccountForCache();
  absl::Status CommitAndSwitch();
  absl::Status SwitchTo(int prefix, PlanId plan);
  // Returns whether the ranks were alike before anything was frozen: only then does anything freeze. A collective.
  absl::StatusOr<bool> WereIdentical();
  // Compares the ranks now and then while something is frozen. Errors: those of EndDivergence().
  absl::Status CompareRanksIfDue();
  // The ranks have come apart, `when` says. Errors: those of `resync`; [RANKS_DIFFER].
  absl::Status EndDivergence(const std::string& when);
  // Freezes `prefix` modules on all ranks, or on none. Errors: those of ChangeAllOrNone().
  absl::Status ChangePrefix(int prefix);

  ModuleFreezer* const freezer_;
  GradientReducer* const reducer_;
  const ProcessGroupPtr group_;
  const std::vector<std::vector<NamedTensor>> snapshot_tensors_;
  const std::unique_ptr<FrozenForward> frozen_forward_;
  std::unique_ptr<FusedPrefix> fused_;  // null: there is none
  RankLink link_;
  TimeLedger account_;
  double cache_spent_ = 0;  // seconds of the cache that are in the account already
  int64_t step_;
  const int freeze_first_;
  int restored_prefix_;
  std::optional<SamplingRequest> sampling_;  // the step under way answers it
  at::Tensor captured_;
  std::unique_ptr<GradientMeter> meter_;  // null where the step's gradients are not measured
  std::vector<Switch> switches_;
  bool switches_ended_ = false;  // one could not be made on all ranks, or they differed before the first one
  const std::function<absl::Status()> resync_;
  bool were_identical_ = false;  // at the first switch
  int64_t compared_at_ = 0;      // the step of the newest comparison of the ranks
  // Each of these warnings is logged once.
  bool probe_failed_ = false;
  bool gradients_failed_ = false;
  bool small_batch_told_ = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_SESSION_H_
