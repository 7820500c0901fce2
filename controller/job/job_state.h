#ifndef EGERIA_CONTROLLER_JOB_JOB_STATE_H_
#define EGERIA_CONTROLLER_JOB_JOB_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "controller/job/ownership.h"
#include "egeria/storage/v1/journal.pb.h"

namespace egeria::controller {

// Everything that the controller durably knows of one job, as its facts say it. Apply() is the only mutator, so that
// replaying the journal gives the same state; all other methods answer. The state decides nothing by itself but holds
// the policy, whose decisions wait in pending_decisions() until the owner has journaled them. The owner follows this
// pattern, under its own lock:
//
//   state.Check(facts)  ->  journal.Append(facts)  ->  state.Apply(what Check() returned)
//   while (state.pending_decisions()) the same with state.FactFor(the first of them)
//
// A crash between an observation and its decision loses nothing: the replayed observation makes the policy decide
// again.
//
// Steps never go back within a generation: the owner books an observation that comes late at last_step(). While the job
// is paused, observations are recorded but not shown to the policy, now or in any replay.
//
// Pure (no clock, no I/O); thread-compatible.
class JobState {
 public:
  // Facts that the state has found possible, with the policy that the check has made where they begin a new one. They
  // stay possible until the state changes. The facts themselves belong to the caller and must outlive this.
  class Checked {
   private:
    friend class JobState;
    std::span<const storage::v1::Fact> facts_;
    std::unique_ptr<policy::Policy> policy_;
  };

  JobState() = default;
  JobState(JobState&&) = default;
  JobState& operator=(JobState&&) = default;

  // Judges one fact, or several observations that are to be applied one after the other. Errors: INTERNAL a fact is
  // impossible, with the reason.
  absl::StatusOr<Checked> Check(std::span<const storage::v1::Fact> facts) const;

  // Changes the state by what Check() found possible.
  void Apply(Checked checked);

  // Checks and applies a fact that is in the journal already. Errors: those of Check(); the state does not change then.
  absl::Status Apply(const storage::v1::Fact& fact);

  // --- Registration. Valid after the first fact. ---
  bool registered() const { return policy_ != nullptr; }
  const v1::RegisterJobRequest& registration() const { return registration_; }
  const Ownership& ownership() const { return ownership_; }
  const policy::PolicyConfig& policy_config() const { return policy_config_; }
  int module_count() const { return registration_.modules_size(); }
  Generation generation() const { return generation_; }
  // The generation of a start of the job's processes (RegisterJobRequest.start_id); empty where it is not known.
  std::optional<Generation> GenerationOf(uint64_t start_id) const;
  v1::Mode mode() const { return mode_; }
  bool paused() const { return paused_; }
  bool loss_is_finite() const { return loss_is_finite_; }  // the newest one; true before there is one
  // Says why nothing more can freeze as things are, be it the policy's reason or that the loss is not finite; empty if
  // something can.
  std::string blocked() const;
  bool finished() const { return finished_; }
  bool losses_reported() const { return losses_reported_; }      // by every generation so far
  absl::Time last_fact_time() const { return last_fact_time_; }  // by the journal's clock

  // --- What is frozen --- The prefix that the policy or an operator has decided, in observe mode as in act mode.
  int decided_prefix() const { return policy_->frozen_prefix(); }
  // The prefix that training is to have: the newest plan's, or before the first plan the checkpoint's.
  int planned_prefix() const { return plans_.empty() ? base_prefix_ : plans_.back().frozen_prefix(); }
  // The prefix that this generation started with.
  int base_prefix() const { return base_prefix_; }
  // The plans of this generation have ids over this one.
  PlanId base_plan() const { return base_plan_; }
  PlanId newest_plan() const { return PlanId(base_plan_.value() + static_cast<int64_t>(plans_.size())); }
  // The plans of this generation with an id above `watermark`, oldest first, at most `limit`.
  std::vector<v1::Plan> PlansAbove(PlanId watermark, size_t limit) const;

  // --- The policy ---
  const policy::Policy& policy() const { return *policy_; }
  // Decisions of the policy that no Decided fact has made official yet, oldest first.
  const std::deque<policy::Decision>& pending_decisions() const { return pending_; }
  // The fact that makes `decision` official: a plan in act mode, a mere report in observe mode.
  storage::v1::Fact FactFor(const policy::Decision& decision, v1::DecisionOrigin origin, absl::Time now) const;
  // A number that rises whenever the policy starts a fresh history: with every decision and every adoption.
  int64_t epoch() const { return epoch_; }
  // The number of replayed decisions that this version of the policy would not make. The journal's were taken.
  int64_t divergences() const { return divergences_; }

  // --- History ---
  int64_t last_step() const { return last_step_; }
  int64_t last_loss_step() const { return last_loss_step_; }  // -1: no loss is recorded
  std::optional<double> last_learning_rate() const { return last_learning_rate_; }
  int last_zero_lr_prefix() const { return last_zero_lr_prefix_; }
  int frozen_by_script() const { return frozen_by_script_; }  // as the policy was told last
  size_t observations() const { return observations_.size(); }
  int64_t readings() const { return readings_; }
  // The bytes of all facts so far, which is what the job takes of the journal. It never falls.
  int64_t fact_bytes() const { return fact_bytes_; }
  const std::vector<v1::Decision>& decisions() const { return decisions_; }
  // How many observations and decisions a reader of the history has passed.
  struct HistoryPlace {
    size_t observations = 0;
    size_t decisions = 0;
  };
  // Calls `visit` with the next decision or observation in order, unless the policy has not seen it. Returns false at
  // the end.
  bool VisitHistory(HistoryPlace* place, absl::FunctionRef<void(const v1::ExportRecord&)> visit) const;

  // The whole state as text, with all digits. Equal states have equal texts.
  std::string DebugString() const;

 private:
  struct Observed {
    policy::Observation observation;
    bool seen = false;  // by the policy
    std::optional<bool> loss_is_finite = std::nullopt;
  };

  using PolicyPtr = std::unique_ptr<policy::Policy>;

  // Judges one fact. `last_step` is the step of the fact before it. `policy` gets the policy that the fact begins.
  absl::Status CheckOne(const storage::v1::Fact& fact, int64_t last_step, PolicyPtr* policy) const;
  absl::Status CheckRegistered(const storage::v1::JobRegistered& fact, PolicyPtr* policy) const;
  absl::Status CheckGeneration(const storage::v1::GenerationStarted& fact, PolicyPtr* policy) const;
  absl::Status CheckObserved(const v1::Observation& fact, int64_t last_step) const;
  absl::Status CheckDecided(const v1::Decision& fact) const;

  void ApplyOne(const storage::v1::Fact& fact, PolicyPtr policy);
  void ApplyRegistered(const storage::v1::JobRegistered& fact, PolicyPtr policy);
  void ApplyGeneration(const storage::v1::GenerationStarted& fact, PolicyPtr policy);
  void ApplyObserved(const v1::Observation& fact);
  void ApplyDecided(const v1::Decision& fact);
  void ApplyMode(v1::Mode mode);

  // Books that the job adopts the prefix that a worker says is frozen.
  void AdoptFromWorker(int64_t step, int frozen_prefix, const std::string& reason);
  void RecordDecision(v1::Decision decision);
  // Books an observation in the history, and updates the values derived from it.
  void RecordObservation(const Observed& observed);
  // The registration once this generation has started, and whether every generation has reported losses then.
  v1::RegisterJobRequest RegistrationFrom(const storage::v1::GenerationStarted& fact) const;
  bool LossesReportedFrom(const storage::v1::GenerationStarted& fact) const {
    return losses_reported_ && !fact.losses_unreported();
  }
  // Cuts the history after `step` and lets `policy`, which has observed nothing, see the rest.
  void RollBackTo(int64_t step, PolicyPtr policy);

  v1::RegisterJobRequest registration_;
  Ownership ownership_;
  policy::PolicyConfig policy_config_;
  std::unique_ptr<policy::Policy> policy_;
  Generation generation_;
  std::map<uint64_t, Generation> starts_;  // all that have told a start id
  v1::Mode mode_ = v1::MODE_ACT;
  bool paused_ = false;
  bool finished_ = false;
  bool losses_reported_ = true;            // by every generation so far
  absl::Time now_ = absl::InfinitePast();  // the time of the fact that is being applied
  absl::Time last_fact_time_ = absl::InfinitePast();

  int base_prefix_ = 0;  // frozen before the first plan of this generation
  PlanId base_plan_;     // the last plan that a rank had applied or received before this generation
  std::vector<v1::Plan> plans_;
  std::deque<policy::Decision> pending_;
  int64_t epoch_ = 0;
  int64_t divergences_ = 0;

  int64_t last_step_ = 0;
  int64_t last_loss_step_ = -1;
  bool loss_is_finite_ = true;
  std::optional<double> last_learning_rate_;
  int last_zero_lr_prefix_ = 0;
  int frozen_by_script_ = 0;
  int64_t readings_ = 0;
  int64_t fact_bytes_ = 0;
  std::vector<Observed> observations_;
  std::vector<v1::Decision> decisions_;
  std::vector<size_t> decision_after_;  // how many observations precede each decision
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_STATE_H_
