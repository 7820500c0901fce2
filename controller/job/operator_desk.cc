#include "controller/job/operator_desk.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/directives.h"

namespace egeria::controller {
namespace {

// OK if an operator may set this prefix at all.
absl::Status CheckPrefix(const JobState& state, int frozen_prefix) {
  if (frozen_prefix < 0 || frozen_prefix >= state.module_count()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PREFIX", frozen_prefix, " is not in 0..",
                      state.module_count() - 1, " (the last module never freezes)");
  }
  if (state.mode() != v1::MODE_ACT) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "OBSERVE_MODE",
                      "nothing is frozen in observe mode: switch the job to act mode first");
  }
  if (!state.finished()) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "JOB_FINISHED", "this job has finished");
}

policy::Decision DecisionByHand(const Job& job, int frozen_prefix, const std::string& reason) {
  policy::Decision decision;
  decision.step = job.state.last_step();
  for (const auto& [number, rank] : job.live.ranks.ranks()) decision.step = std::max(decision.step, rank.step);
  decision.action = frozen_prefix < job.state.planned_prefix() ? policy::Action::kUnfreeze : policy::Action::kFreeze;
  decision.frozen_prefix = frozen_prefix;
  decision.reason = reason.empty() ? "by hand" : reason.substr(0, 1'024);
  return decision;
}

}  // namespace

absl::StatusOr<OperatorDesk::PrefixChange> OperatorDesk::SetFrozenPrefix(const JobId& id, int frozen_prefix,
                                                                         const std::string& reason, bool force) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, jobs_->table.Get(id));
  EGERIA_RETURN_IF_ERROR(CheckPrefix(job->state, frozen_prefix));
  EGERIA_RETURN_IF_ERROR(jobs_->facts.CommitPendingDecisions(*job, effects));
  const int before = job->state.planned_prefix();
  if (frozen_prefix == before && frozen_prefix == job->state.decided_prefix()) {
    return PrefixChange{job->state.newest_plan(), before};
  }
  if (const auto objection = job->state.policy().Objection(frozen_prefix); objection && !force) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "VETOED", "the policy ",
                      policy::PolicyName(job->state.policy_config()), " objects: ", *objection,
                      "; freeze with --force to do it all the same");
  }
  const policy::Decision decision = DecisionByHand(*job, frozen_prefix, reason);
  const storage::v1::Fact fact =
      job->state.FactFor(decision, v1::DECISION_ORIGIN_OPERATOR, jobs_->options.wall_clock());
  EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(*job, fact));
  LogInfo("job ", id.text(), ": frozen prefix ", frozen_prefix, " by hand, plan ", job->state.newest_plan().value(),
          ": ", decision.reason);
  RefreshRequests(*job, jobs_->options, effects);
  job->live.ranks.PushDirectives(effects);
  return PrefixChange{job->state.newest_plan(), before};
}

absl::StatusOr<bool> OperatorDesk::SetPaused(const JobId& id, bool paused) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, jobs_->table.Get(id));
  if (job->state.paused() == paused) return paused;
  EGERIA_RETURN_IF_ERROR(jobs_->facts.CommitPendingDecisions(*job, effects));
  storage::v1::Fact fact = jobs_->facts.NewFact();
  fact.mutable_pause_changed()->set_paused(paused);
  EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(*job, fact));
  LogInfo("job ", id.text(), ": ", paused ? "paused" : "resumed", " by hand");
  RefreshRequests(*job, jobs_->options, effects);
  return !paused;
}

absl::StatusOr<v1::Mode> OperatorDesk::SetMode(const JobId& id, v1::Mode mode) {
  if (mode != v1::MODE_ACT && mode != v1::MODE_OBSERVE) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MODE", static_cast<int>(mode),
                      " is neither act nor observe");
  }
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, jobs_->table.Get(id));
  const v1::Mode before = job->state.mode();
  if (before == mode) return before;
  EGERIA_RETURN_IF_ERROR(jobs_->facts.CommitPendingDecisions(*job, effects));
  storage::v1::Fact fact = jobs_->facts.NewFact();
  fact.mutable_mode_changed()->set_mode(mode);
  EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(*job, fact));
  LogInfo("job ", id.text(), ": ", mode == v1::MODE_ACT ? "act" : "observe", " mode by hand");
  const absl::Status decided = jobs_->facts.CommitPendingDecisions(*job, effects);
  RefreshRequests(*job, jobs_->options, effects);
  job->live.ranks.PushDirectives(effects);
  EGERIA_RETURN_IF_ERROR(decided);
  return before;
}

}  // namespace egeria::controller
