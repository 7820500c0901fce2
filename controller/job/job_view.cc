#include "controller/job/job_view.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "controller/job/job.h"
#include "controller/job/proto_time.h"

namespace egeria::controller {
namespace {

// Fills in what the ranks of the current generation say.
void SummarizeRanks(const Job& job, v1::JobSummary* summary) {
  const JobState& state = job.state;
  int connected = 0;
  bool heard = false;
  int64_t step = state.last_step();
  int applied = state.module_count();
  for (const auto& [number, rank] : job.live.ranks.ranks()) {
    if (rank.connected()) ++connected;
    if (!rank.heard) continue;
    heard = true;
    step = std::max(step, rank.step);
    applied = std::min(applied, rank.frozen_prefix);
  }
  summary->set_connected_ranks(connected);
  summary->set_phase(state.finished() ? v1::JOB_PHASE_FINISHED
                     : connected > 0  ? v1::JOB_PHASE_RUNNING
                                      : v1::JOB_PHASE_SILENT);
  summary->set_step(step);
  // Until a rank has told, only the prefix that the generation started with is known.
  summary->set_applied_prefix(heard ? applied : state.base_prefix());
}

double FrozenParameterShare(const v1::RegisterJobRequest& registration, int frozen_prefix) {
  int64_t all = 0, frozen = 0;
  for (int i = 0; i < registration.modules_size(); ++i) {
    all += registration.modules(i).parameter_count();
    if (i < frozen_prefix) frozen += registration.modules(i).parameter_count();
  }
  return all > 0 ? static_cast<double>(frozen) / static_cast<double>(all) : 0;
}

}  // namespace

void JobTotals::Count(const v1::Decision& decision) {
  const char* origin = "policy";
  if (decision.origin() == v1::DECISION_ORIGIN_OPERATOR) origin = "operator";
  if (decision.origin() == v1::DECISION_ORIGIN_WORKER) origin = "checkpoint";
  ++decisions[{decision.action(), origin}];
}

v1::JobSummary Summarize(const Job& job) {
  const JobState& state = job.state;
  const v1::RegisterJobRequest& registration = state.registration();
  v1::JobSummary summary;
  summary.set_job_id(job.id.text());
  summary.set_training_job(registration.training_job());
  summary.set_generation(state.generation().value());
  summary.set_world_size(registration.world_size());
  SummarizeRanks(job, &summary);
  summary.set_total_steps(registration.total_steps());
  summary.set_policy(policy::PolicyName(state.policy_config()));
  summary.set_mode(state.mode());
  summary.set_paused(state.paused());
  summary.set_module_count(state.module_count());
  summary.set_decided_prefix(state.decided_prefix());
  summary.set_frozen_by_script(state.frozen_by_script());
  summary.set_plan_id(state.newest_plan().value());
  summary.set_readings(state.readings());
  summary.set_frozen_parameter_share(FrozenParameterShare(registration, summary.applied_prefix()));
  if (job.live.last_heartbeat > absl::InfinitePast()) {
    *summary.mutable_last_heartbeat() = TimeToProto(job.live.last_heartbeat);
  }
  const policy::PolicyStatus policy = state.policy().status();
  summary.set_bootstrapping(policy.bootstrapping);
  summary.set_blocked(job.live.blocked.empty() || !state.loss_is_finite() ? state.blocked() : job.live.blocked);
  summary.set_advice(policy.advice);
  return summary;
}

JobView ViewOf(const Job& job) {
  JobView view;
  view.summary = Summarize(job);
  for (const v1::LayerModule& module : job.state.registration().modules()) view.modules.push_back(module.name());
  const std::vector<absl::Status>& status = job.live.graphs.module_status;
  for (size_t i = 0; i < status.size() && i < view.modules.size(); ++i) {
    if (!status[i].ok()) view.unusable.emplace(view.modules[i], NameOfError(status[i]));
  }
  view.policy = job.state.policy().status();
  view.totals = job.live.totals;
  view.account = job.live.account;
  view.cache = job.live.cache;
  const v1::Counters counters = job.live.ranks.Totals();
  view.totals.worker_samples_dropped = counters.samples_dropped();
  view.totals.reconnects = counters.reconnects();
  view.totals.commits = counters.commits();
  view.last_activity = job.live.last_activity;
  return view;
}

JobDetail DetailOf(const Job& job) {
  JobDetail detail;
  detail.view = ViewOf(job);
  for (const auto& [number, rank] : job.live.ranks.ranks()) {
    if (detail.ranks.size() == JobDetail::kRanks) break;
    detail.ranks.push_back({number, rank.connected(), rank.step, rank.frozen_prefix, rank.counters});
  }
  detail.losses = job.live.losses.points();
  return detail;
}

namespace {

// Describes the job, for an export.
v1::JobHeader HeaderOf(const Job& job) {
  v1::JobHeader header;
  *header.mutable_summary() = Summarize(job);
  const v1::RegisterJobRequest& registration = job.state.registration();
  *header.mutable_policy() = registration.policy();
  for (const v1::LayerModule& module : registration.modules()) {
    header.add_modules(module.name());
    header.add_step_shares(module.step_share());
    header.add_parameter_counts(module.parameter_count());
  }
  *header.mutable_planned_learning_rates() = registration.planned_learning_rates();
  header.set_first_step(registration.step());
  header.set_budget(registration.budget());
  header.set_saved_before(registration.saved_before());
  header.set_mean_rate_before(registration.mean_rate_before());
  header.set_embedding_prefix(registration.embedding_prefix());
  header.set_losses_unreported(!job.state.losses_reported());
  return header;
}

}  // namespace

absl::StatusOr<std::vector<v1::ExportRecord>> NextOfExport(const Job& job, ExportCursor* cursor) {
  constexpr size_t kRecords = 256;
  std::vector<v1::ExportRecord> records;
  const int64_t generation = job.state.generation().value();
  if (!std::exchange(cursor->begun, true)) {
    cursor->generation = generation;
    *records.emplace_back().mutable_header() = HeaderOf(job);
  }
  if (cursor->generation != generation) {
    return NamedError(absl::StatusCode::kAborted, "HISTORY_CHANGED",
                      "a new generation of the job has begun; try again");
  }
  const auto take = [&records](const v1::ExportRecord& record) { records.push_back(record); };
  while (records.size() < kRecords && job.state.VisitHistory(&cursor->place, take)) {
  }
  return records;
}
}  // namespace egeria::controller
