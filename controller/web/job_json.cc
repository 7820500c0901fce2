#include "controller/web/job_json.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "controller/job/job_phase.h"
#include "controller/web/job_metrics.h"
#include "controller/web/job_words.h"
#include "nlohmann/json.hpp"

namespace egeria::controller {
namespace {

using nlohmann::json;

// Bytes that are no UTF-8 become U+FFFD; numbers that are not finite become null.
std::string Write(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

json SummaryOf(const v1::JobSummary& job) {
  json out = {
      {"id", job.job_id()},
      {"name", job.training_job().empty() ? job.job_id() : job.training_job()},
      {"generation", job.generation()},
      {"phase", PhaseName(job.phase())},
      {"observing", job.mode() == v1::MODE_OBSERVE},
      {"paused", job.paused()},
      {"bootstrapping", job.bootstrapping()},
      {"blocked", job.blocked()},
      {"advice", job.advice()},
      {"policy", job.policy()},
      {"step", job.step()},
      {"total_steps", job.total_steps()},
      {"ranks", job.world_size()},
      {"connected_ranks", job.connected_ranks()},
      {"modules", job.module_count()},
      {"decided_prefix", job.decided_prefix()},
      {"applied_prefix", job.applied_prefix()},
      {"frozen_parameters_ratio", job.frozen_parameter_share()},
      {"readings", job.readings()},
      {"plan", job.plan_id()},
  };
  if (job.has_last_heartbeat()) out["last_heartbeat"] = SecondsOf(job.last_heartbeat());
  return out;
}

void AddAccount(const JobView& view, json* out) {
  if (!view.account) return;
  (*out)["saved_seconds"] = view.account->saved_seconds();
  (*out)["spent_seconds"] = view.account->spent_seconds();
}

json ModulesOf(const JobView& view) {
  json modules = json::array();
  for (size_t i = 0; i < view.modules.size(); ++i) {
    json module = {{"name", view.modules[i]}};
    if (const auto unusable = view.unusable.find(view.modules[i]); unusable != view.unusable.end()) {
      module["without_reference"] = absl::AsciiStrToLower(unusable->second);
    }
    if (i < view.policy.modules.size()) {
      const policy::ModuleStatus& status = view.policy.modules[i];
      if (status.plasticity) module["plasticity"] = *status.plasticity;
      if (status.slope) module["slope"] = *status.slope;
      if (status.threshold) {
        module["threshold"] = *status.threshold;
        module["stationary_readings"] = status.consecutive;
      }
      if (status.snr) {
        module["snr"] = status.snr->value;
        module["snr_lower"] = status.snr->lower;
        module["snr_upper"] = status.snr->upper;
      }
      if (status.snr_threshold) module["snr_threshold"] = *status.snr_threshold;
    }
    modules.push_back(std::move(module));
  }
  return modules;
}

json RanksOf(const JobDetail& detail) {
  json ranks = json::array();
  for (const RankView& rank : detail.ranks) {
    ranks.push_back({{"rank", rank.number},
                     {"connected", rank.connected},
                     {"step", rank.step},
                     {"frozen_prefix", rank.frozen_prefix},
                     {"samples_sent", rank.counters.samples_sent()},
                     {"samples_dropped", rank.counters.samples_dropped()},
                     {"reconnects", rank.counters.reconnects()}});
  }
  return ranks;
}

json TotalsOf(const JobTotals& totals) {
  json refused = json::object();
  for (const auto& [name, count] : totals.uploads_refused) refused[absl::AsciiStrToLower(name)] = count;
  double reference_seconds = 0;
  for (const auto& [backend, seconds] : totals.reference_seconds) reference_seconds += seconds;
  return {{"readings", totals.readings},
          {"gradient_readings", totals.gradient_readings},
          {"commits", totals.commits},
          {"samples_received", totals.samples_received},
          {"samples_dropped", totals.worker_samples_dropped},
          {"uploads_refused", std::move(refused)},
          {"snapshots_received", totals.snapshots_received},
          {"snapshot_bytes", totals.snapshot_bytes},
          {"reference_seconds", reference_seconds},
          {"reconnects", totals.reconnects}};
}

// Two arrays of equal lengths: the steps and the values.
json CurveOf(const std::vector<Curve::Point>& points) {
  json steps = json::array(), values = json::array();
  for (const Curve::Point& point : points) {
    steps.push_back(point.step);
    values.push_back(point.value);
  }
  return json::array({std::move(steps), std::move(values)});
}

const char* OriginOf(v1::DecisionOrigin origin) {
  if (origin == v1::DECISION_ORIGIN_OPERATOR) return "operator";
  return origin == v1::DECISION_ORIGIN_WORKER ? "checkpoint" : "policy";
}

json DecisionsOf(const JobHistory& history) {
  json decisions = json::array();
  for (const v1::Decision& decision : history.decisions()) {
    decisions.push_back({{"step", decision.step()},
                         {"action", decision.action()},
                         {"frozen_prefix", decision.frozen_prefix()},
                         {"reason", decision.reason()},
                         {"origin", OriginOf(decision.origin())},
                         {"plan", decision.plan_id()},
                         {"time", SecondsOf(decision.time())}});
  }
  return decisions;
}

}  // namespace

std::string JobsJson(const ManagerView& view, const std::string& version, const std::string& trouble) {
  const std::map<std::string, std::string> labels = TrainingJobLabels(view.jobs);
  std::vector<const JobView*> jobs;
  json phases = {{"running", 0}, {"silent", 0}, {"finished", 0}};
  for (const JobView& job : view.jobs) {
    jobs.push_back(&job);
    phases[PhaseName(job.summary.phase())] = phases[PhaseName(job.summary.phase())].get<int64_t>() + 1;
  }
  const size_t listed = std::min(jobs.size(), kListedJobs);
  const auto precedes = [](const JobView* a, const JobView* b) {
    const bool a_runs = a->summary.phase() == v1::JOB_PHASE_RUNNING,
               b_runs = b->summary.phase() == v1::JOB_PHASE_RUNNING;
    if (a_runs != b_runs) return a_runs;
    if (a->last_activity != b->last_activity) return a->last_activity > b->last_activity;
    return a->summary.job_id() < b->summary.job_id();
  };
  std::partial_sort(jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(listed), jobs.end(), precedes);
  jobs.resize(listed);
  json list = json::array();
  for (const JobView* job : jobs) {
    json& out = list.emplace_back(SummaryOf(job->summary));
    out["label"] = labels.at(job->summary.job_id());
    AddAccount(*job, &out);
  }
  return Write({{"version", version}, {"trouble", trouble}, {"phases", std::move(phases)}, {"jobs", std::move(list)}});
}

std::string JobJson(const JobDetail& detail) {
  const JobView& view = detail.view;
  json out = SummaryOf(view.summary);
  AddAccount(view, &out);
  out["words"] = WordsOnJob(view);
  out["cache_words"] = WordsOnCache(view);
  if (view.cache) {
    out["cache"] = {{"state", view.cache->state()},
                    {"reason", view.cache->reason()},
                    {"hits", view.cache->hits()},
                    {"computed", view.cache->computed()},
                    {"bytes_read", view.cache->bytes_read()},
                    {"saved_seconds", view.cache->saved_seconds()}};
  }
  out["module_states"] = ModulesOf(view);
  out["rank_states"] = RanksOf(detail);
  out["totals"] = TotalsOf(view.totals);
  return Write(out);
}

std::string HistoryJson(const JobDetail& detail, const JobHistory& history) {
  json modules = json::array();
  for (size_t i = 0; i < history.of_modules().size(); ++i) {
    const JobHistory::Module& module = history.of_modules()[i];
    modules.push_back({{"name", history.modules()[i]},
                       {"plasticity", CurveOf(module.plasticity.points())},
                       {"slope", CurveOf(module.slope.points())},
                       {"snr", CurveOf(module.snr.points())}});
  }
  return Write({{"complete", history.complete()},
                {"first_step", history.first_step()},
                {"loss", CurveOf(detail.losses)},
                {"learning_rate", CurveOf(history.learning_rate().points())},
                {"modules", std::move(modules)},
                {"decision_count", history.decision_count()},
                {"decisions", DecisionsOf(history)}});
}

}  // namespace egeria::controller
