// What operators and metrics ask of the jobs, and what operators change by hand.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/job.h"
#include "controller/job/job_manager.h"
#include "controller/job/proto_time.h"

namespace egeria::controller {

v1::JobSummary JobManager::Summarize(const Job& job) const {
  const JobState& state = job.state;
  const v1::RegisterJobRequest& registration = state.registration();
  v1::JobSummary summary;
  summary.set_job_id(job.id.text());
  summary.set_training_job(registration.training_job());
  summary.set_generation(state.generation().value());
  summary.set_world_size(registration.world_size());
  int connected = 0, heard = 0;
  int64_t step = state.last_step();
  int applied = state.module_count();
  for (const auto& [number, rank] : job.ranks) {
    if (rank.session.value() != 0) ++connected;
    if (!rank.heard) continue;
    ++heard;
    step = std::max(step, rank.step);
    applied = std::min(applied, rank.frozen_prefix);
  }
  summary.set_connected_ranks(connected);
  summary.set_phase(state.finished() ? v1::JOB_PHASE_FINISHED
                    : connected > 0  ? v1::JOB_PHASE_RUNNING
                                     : v1::JOB_PHASE_SILENT);
  summary.set_step(step);
  summary.set_total_steps(registration.total_steps());
  summary.set_policy(policy::PolicyName(state.policy_config()));
  summary.set_mode(state.mode());
  summary.set_paused(state.paused());
  summary.set_module_count(state.module_count());
  summary.set_decided_prefix(state.decided_prefix());
  // Until a rank has told, what it was registered with is all there is to say.
  summary.set_applied_prefix(heard > 0 ? applied : state.base_prefix());
  summary.set_plan_id(state.newest_plan().value());
  summary.set_readings(state.readings());
  int64_t all = 0, frozen = 0;
  for (int i = 0; i < state.module_count(); ++i) {
    all += registration.modules(i).parameter_count();
    if (i < summary.applied_prefix()) frozen += registration.modules(i).parameter_count();
  }
  summary.set_frozen_parameter_share(all > 0 ? static_cast<double>(frozen) / static_cast<double>(all) : 0);
  if (job.last_heartbeat > absl::InfinitePast()) {
    *summary.mutable_last_heartbeat() = TimeToProto(job.last_heartbeat);
  }
  const policy::PolicyStatus policy = state.policy().status();
  summary.set_bootstrapping(policy.bootstrapping);
  summary.set_blocked(job.blocked.empty() ? policy.blocked : job.blocked);
  return summary;
}

v1::ListJobsResponse JobManager::ListJobs() const {
  v1::ListJobsResponse response;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, job] : jobs_) *response.add_jobs() = Summarize(*job);
  return response;
}

absl::StatusOr<std::vector<v1::ExportRecord>> JobManager::ExportJob(const JobId& id) const {
  std::vector<v1::ExportRecord> records;
  const std::lock_guard<std::mutex> lock(mutex_);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, FindJob(id));
  v1::JobHeader* header = records.emplace_back().mutable_header();
  *header->mutable_summary() = Summarize(*job);
  *header->mutable_policy() = job->state.registration().policy();
  const v1::RegisterJobRequest& registration = job->state.registration();
  for (const v1::LayerModule& module : registration.modules()) {
    header->add_modules(module.name());
    header->add_step_shares(module.step_share());
    header->add_parameter_counts(module.parameter_count());
  }
  *header->mutable_planned_learning_rates() = registration.planned_learning_rates();
  header->set_first_step(registration.step());
  header->set_budget(registration.budget());
  header->set_saved_before(registration.saved_before());
  header->set_mean_rate_before(registration.mean_rate_before());
  header->set_embedding_prefix(registration.embedding_prefix());
  header->set_losses_unreported(!job->state.losses_reported());
  job->state.VisitHistory([&records](const v1::ExportRecord& record) { records.push_back(record); });
  return records;
}

absl::StatusOr<PlanId> JobManager::SetFrozenPrefix(const JobId& id, int frozen_prefix, const std::string& reason,
                                                   bool force) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  if (frozen_prefix < 0 || frozen_prefix >= job->state.module_count()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PREFIX", frozen_prefix, " is not in 0..",
                      job->state.module_count() - 1, " (the last module never freezes)");
  }
  if (job->state.mode() != v1::MODE_ACT) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "OBSERVE_MODE",
                      "nothing is frozen in observe mode: switch the job to act mode first");
  }
  if (job->state.finished()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "JOB_FINISHED", "this job has finished");
  }
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(*job, effects));
  if (frozen_prefix == job->state.planned_prefix() && frozen_prefix == job->state.decided_prefix()) {
    return job->state.newest_plan();
  }
  if (const auto objection = job->state.policy().Objection(frozen_prefix); objection && !force) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "VETOED", "the policy ",
                      policy::PolicyName(job->state.policy_config()), " objects: ", *objection,
                      "; freeze with --force to do it all the same");
  }
  policy::Decision decision;
  decision.step = job->state.last_step();
  for (const auto& [number, rank] : job->ranks) decision.step = std::max(decision.step, rank.step);
  decision.action = frozen_prefix < job->state.planned_prefix() ? policy::Action::kUnfreeze : policy::Action::kFreeze;
  decision.frozen_prefix = frozen_prefix;
  decision.reason = reason.empty() ? "by hand" : reason.substr(0, 1'024);
  const storage::v1::Fact fact = job->state.FactFor(decision, v1::DECISION_ORIGIN_OPERATOR, options_.clock());
  EGERIA_RETURN_IF_ERROR(Commit(*job, {fact}, /*sync=*/true, effects));
  ++job->totals.decisions[{fact.decided().action(), "operator"}];
  LogInfo("job ", id.text(), ": frozen prefix ", frozen_prefix, " by hand, plan ", job->state.newest_plan().value(),
          ": ", decision.reason);
  RefreshRequests(*job, effects);
  PushDirectives(*job, effects);
  return job->state.newest_plan();
}

absl::Status JobManager::SetPaused(const JobId& id, bool paused) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  if (job->state.paused() == paused) return absl::OkStatus();
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(*job, effects));
  storage::v1::Fact fact;
  *fact.mutable_time() = TimeToProto(options_.clock());
  fact.mutable_pause_changed()->set_paused(paused);
  EGERIA_RETURN_IF_ERROR(Commit(*job, {fact}, /*sync=*/true, effects));
  LogInfo("job ", id.text(), ": ", paused ? "paused" : "resumed", " by hand");
  RefreshRequests(*job, effects);
  return absl::OkStatus();
}

absl::Status JobManager::SetMode(const JobId& id, v1::Mode mode) {
  if (mode != v1::MODE_ACT && mode != v1::MODE_OBSERVE) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MODE", static_cast<int>(mode),
                      " is neither act nor observe");
  }
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  EGERIA_ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  if (job->state.mode() == mode) return absl::OkStatus();
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(*job, effects));
  storage::v1::Fact fact;
  *fact.mutable_time() = TimeToProto(options_.clock());
  fact.mutable_mode_changed()->set_mode(mode);
  EGERIA_RETURN_IF_ERROR(Commit(*job, {fact}, /*sync=*/true, effects));
  LogInfo("job ", id.text(), ": ", mode == v1::MODE_ACT ? "act" : "observe", " mode by hand");
  const absl::Status decided = CommitPendingDecisions(*job, effects);
  RefreshRequests(*job, effects);
  PushDirectives(*job, effects);
  return decided;
}

JobView JobManager::ViewOf(const Job& job) const {
  JobView view;
  view.summary = Summarize(job);
  for (const v1::LayerModule& module : job.state.registration().modules()) view.modules.push_back(module.name());
  view.policy = job.state.policy().status();
  view.totals = job.totals;
  view.account = job.account;
  view.totals.worker_samples_dropped = job.counters_before.samples_dropped();
  view.totals.reconnects = job.counters_before.reconnects();
  view.totals.commits = job.counters_before.commits();
  int64_t commits = 0;
  for (const auto& [number, rank] : job.ranks) {
    view.totals.worker_samples_dropped += rank.counters.samples_dropped();
    view.totals.reconnects += rank.counters.reconnects();
    commits = std::max(commits, rank.counters.commits());
  }
  view.totals.commits += commits;
  view.last_activity = job.last_activity;
  return view;
}

ManagerView JobManager::View() const {
  ManagerView view;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, job] : jobs_) view.jobs.push_back(ViewOf(*job));
    view.quarantined_jobs = quarantined_jobs_;
    view.journal_errors = journal_errors_;
  }
  view.evaluator = evaluator_->counters();
  return view;
}

std::string JobManager::DebugString(const JobId& id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = jobs_.find(id);
  return found == jobs_.end() ? "" : found->second->state.DebugString();
}

}  // namespace egeria::controller
