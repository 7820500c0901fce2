#include "controller/web/job_metrics.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/family.h"
#include "controller/job/job_phase.h"

namespace egeria::controller {
namespace {

using metrics::Family;
using metrics::Labels;

// The metrics that have one series per job, in the order in which they are shown.
struct JobFamilies {
  Family step = Family::Gauge("egeria_job_step", "Optimizer steps that the job has done.");
  Family ranks = Family::Gauge("egeria_job_ranks", "Ranks that the job has.");
  Family connected = Family::Gauge("egeria_connected_ranks", "Ranks whose stream is open.");
  Family bootstrapping =
      Family::Gauge("egeria_job_bootstrapping", "1 while the loss has not settled yet, so that nothing freezes.");
  Family paused = Family::Gauge("egeria_job_paused", "1 while an operator has paused the policy.");
  Family observing = Family::Gauge("egeria_job_observing", "1 in observe mode: decisions are only reported.");
  Family blocked = Family::Gauge("egeria_job_blocked",
                                 "1 while something is in the way of every further freeze; `egeria list` says what.");
  Family unusable = Family::Gauge("egeria_module_without_reference",
                                  "1 for a module whose reference is not evaluated, with the error's name.");
  Family prefix = Family::Gauge("egeria_frozen_prefix",
                                "Modules from the first that are frozen: as decided, and as applied by all ranks.");
  Family by_script = Family::Gauge("egeria_frozen_by_script",
                                   "Modules from the first that the training's script has frozen by itself.");
  Family share = Family::Gauge("egeria_frozen_parameters_ratio", "Share of the parameters that is frozen.");
  Family readings = Family::Counter("egeria_readings_total", "Plasticity readings that counted.");
  Family plasticity =
      Family::Gauge("egeria_plasticity", "Newest SP loss between a module of the training model and its reference.");
  Family slope = Family::Gauge("egeria_plasticity_slope", "Slope of the smoothed plasticity, per reading.");
  Family threshold = Family::Gauge("egeria_plasticity_threshold", "A module whose |slope| stays under this freezes.");
  Family consecutive =
      Family::Gauge("egeria_plasticity_stationary_readings", "Slopes in a row that were under the threshold.");
  Family gradient_readings =
      Family::Counter("egeria_gradient_readings_total", "Steps whose gradients the workers have told of.");
  Family snr = Family::Gauge("egeria_gradient_snr",
                             "Signal-to-noise ratio of a module's gradients at the job's batch, estimated.");
  Family snr_lower = Family::Gauge("egeria_gradient_snr_lower", "Lower end of its 90 % interval.");
  Family snr_upper = Family::Gauge("egeria_gradient_snr_upper", "Upper end of its 90 % interval.");
  Family snr_threshold =
      Family::Gauge("egeria_gradient_snr_threshold", "A module whose ratio is surely over this does not freeze.");
  Family decisions = Family::Counter("egeria_decisions_total", "Decisions by what they do and by who made them.");
  Family commits = Family::Counter("egeria_commits_total", "Plans that the ranks have applied together.");
  Family samples = Family::Counter("egeria_samples_received_total", "Samples taken into the reference queue.");
  Family dropped = Family::Counter("egeria_samples_dropped_total", "Samples that the workers' queues have dropped.");
  Family refused = Family::Counter("egeria_uploads_refused_total", "Samples and snapshots refused, by error.");
  Family snapshots = Family::Counter("egeria_snapshots_received_total", "Snapshots taken for the reference.");
  Family snapshot_bytes = Family::Counter("egeria_snapshot_received_bytes_total", "Bytes of those snapshots.");
  Family seconds = Family::Counter("egeria_reference_seconds_total",
                                   "Processor time that the reference engine has taken, by backend.");
  Family evaluations =
      Family::Counter("egeria_reference_evaluations_total", "Samples that it has evaluated, by backend.");
  Family reconnects = Family::Counter("egeria_worker_reconnects_total", "Streams that ranks have opened again.");
  Family saved = Family::Gauge("egeria_job_saved_seconds", "Time of rank 0 that freezing has saved, as it tells.");
  Family spent = Family::Gauge("egeria_job_spent_seconds", "Time of rank 0 that Egeria has taken, as it tells.");
  Family cache_samples = Family::Counter("egeria_job_cache_samples_total",
                                         "Samples of rank 0 that asked the cache of frozen activations, by result.");
  Family cache_bytes = Family::Counter("egeria_job_cache_read_bytes_total", "Bytes of the entries that it has read.");
  Family cache_saved =
      Family::Gauge("egeria_job_cache_saved_seconds", "Time that its cache has saved, less its cost; estimated.");
  Family cache_state = Family::Gauge("egeria_job_cache_state", "1 for the state of its cache.");

  void AddSummary(const Labels& job, const v1::JobSummary& summary);
  void AddPolicy(const Labels& job, const JobView& view);
  void AddTotals(const Labels& job, const JobTotals& totals);
  void AddAccount(const Labels& job, const v1::Account& account);
  void AddCache(const Labels& job, const v1::CacheReport& cache);
  void MoveTo(std::vector<prometheus::MetricFamily>* families) &&;
};

Labels With(Labels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

void JobFamilies::AddSummary(const Labels& job, const v1::JobSummary& summary) {
  step.Add(job, static_cast<double>(summary.step()));
  ranks.Add(job, summary.world_size());
  connected.Add(job, summary.connected_ranks());
  bootstrapping.Add(job, summary.bootstrapping() ? 1 : 0);
  paused.Add(job, summary.paused() ? 1 : 0);
  observing.Add(job, summary.mode() == v1::MODE_OBSERVE ? 1 : 0);
  blocked.Add(job, summary.blocked().empty() ? 0 : 1);
  prefix.Add(With(job, "state", "decided"), summary.decided_prefix());
  prefix.Add(With(job, "state", "applied"), summary.applied_prefix());
  by_script.Add(job, summary.frozen_by_script());
  share.Add(job, summary.frozen_parameter_share());
}

void JobFamilies::AddPolicy(const Labels& job, const JobView& view) {
  for (const auto& [module, reason] : view.unusable) {
    unusable.Add(With(With(job, "module", module), "reason", absl::AsciiStrToLower(reason)), 1);
  }
  for (size_t i = 0; i < view.policy.modules.size() && i < view.modules.size(); ++i) {
    const policy::ModuleStatus& status = view.policy.modules[i];
    const Labels module = With(job, "module", view.modules[i]);
    if (status.plasticity) plasticity.Add(module, *status.plasticity);
    if (status.slope) slope.Add(module, *status.slope);
    if (status.threshold) {
      threshold.Add(module, *status.threshold);
      consecutive.Add(module, status.consecutive);
    }
    if (status.snr) {
      snr.Add(module, status.snr->value);
      snr_lower.Add(module, status.snr->lower);
      snr_upper.Add(module, status.snr->upper);
    }
    if (status.snr_threshold) snr_threshold.Add(module, *status.snr_threshold);
  }
}

void JobFamilies::AddTotals(const Labels& job, const JobTotals& totals) {
  readings.Add(job, static_cast<double>(totals.readings));
  gradient_readings.Add(job, static_cast<double>(totals.gradient_readings));
  for (const auto& [what, count] : totals.decisions) {
    decisions.Add(With(With(job, "action", what.first), "reason", what.second), static_cast<double>(count));
  }
  commits.Add(job, static_cast<double>(totals.commits));
  samples.Add(job, static_cast<double>(totals.samples_received));
  dropped.Add(job, static_cast<double>(totals.worker_samples_dropped));
  for (const auto& [name, count] : totals.uploads_refused) {
    refused.Add(With(job, "reason", absl::AsciiStrToLower(name)), static_cast<double>(count));
  }
  snapshots.Add(job, static_cast<double>(totals.snapshots_received));
  snapshot_bytes.Add(job, static_cast<double>(totals.snapshot_bytes));
  for (const auto& [backend, time] : totals.reference_seconds) seconds.Add(With(job, "backend", backend), time);
  for (const auto& [backend, count] : totals.evaluations) {
    evaluations.Add(With(job, "backend", backend), static_cast<double>(count));
  }
  reconnects.Add(job, static_cast<double>(totals.reconnects));
}

void JobFamilies::AddAccount(const Labels& job, const v1::Account& account) {
  saved.Add(job, account.saved_seconds());
  spent.Add(job, account.spent_seconds());
}

void JobFamilies::AddCache(const Labels& job, const v1::CacheReport& cache) {
  cache_samples.Add(With(job, "result", "hit"), static_cast<double>(cache.hits()));
  cache_samples.Add(With(job, "result", "computed"), static_cast<double>(cache.computed()));
  cache_bytes.Add(job, static_cast<double>(cache.bytes_read()));
  cache_saved.Add(job, cache.saved_seconds());
  cache_state.Add(With(job, "state", cache.state()), 1);
}

void JobFamilies::MoveTo(std::vector<prometheus::MetricFamily>* families) && {
  for (Family* family :
       {&step,        &ranks,       &connected,         &bootstrapping, &paused,        &observing,   &blocked,
        &unusable,    &prefix,      &by_script,         &share,         &readings,      &plasticity,  &slope,
        &threshold,   &consecutive, &gradient_readings, &snr,           &snr_lower,     &snr_upper,   &snr_threshold,
        &decisions,   &commits,     &samples,           &dropped,       &refused,       &snapshots,   &snapshot_bytes,
        &seconds,     &evaluations, &reconnects,        &saved,         &cache_samples, &cache_bytes, &cache_saved,
        &cache_state, &spent}) {
    std::move(*family).MoveTo(families);
  }
}

void AddTotalsOfAll(const ManagerView& view, std::vector<prometheus::MetricFamily>* families) {
  Family jobs = Family::Gauge("egeria_jobs", "Jobs that the controller holds, by phase.");
  double streams = 0;
  for (v1::JobPhase phase : {v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_SILENT, v1::JOB_PHASE_FINISHED}) {
    jobs.Add({{"phase", PhaseName(phase)}},
             static_cast<double>(std::count_if(view.jobs.begin(), view.jobs.end(),
                                               [phase](const JobView& job) { return job.summary.phase() == phase; })));
  }
  for (const JobView& job : view.jobs) streams += job.summary.connected_ranks();
  std::move(jobs).MoveTo(families);
  auto add = [families](Family family, double value) {
    family.Add({}, value);
    std::move(family).MoveTo(families);
  };
  add(Family::Gauge("egeria_connected_streams", "Open streams of all jobs."), streams);
  add(Family::Gauge("egeria_reference_queue_bytes", "Samples that wait for the reference engine."),
      static_cast<double>(view.evaluator.queued_bytes));
  add(Family::Gauge("egeria_reference_weight_bytes", "Snapshots that are held for the reference engine."),
      static_cast<double>(view.evaluator.weight_bytes));
  add(Family::Gauge("egeria_reference_resident_memory_bytes", "Resident memory of the process egeria-reference."),
      static_cast<double>(view.evaluator.engine_resident_bytes));
  add(Family::Counter("egeria_reference_cpu_seconds_total", "Processor time of all processes egeria-reference."),
      view.evaluator.engine_cpu_seconds);
  Family ends = Family::Counter("egeria_reference_process_ends_total",
                                "Processes egeria-reference that have ended and were replaced, by reason.");
  for (const char* reason : {"crash", "deadline", "lost"}) {
    const auto found = view.evaluator.engine_ends.find(reason);
    ends.Add({{"reason", reason}}, found == view.evaluator.engine_ends.end() ? 0 : static_cast<double>(found->second));
  }
  std::move(ends).MoveTo(families);
  Family dropped = Family::Counter("egeria_reference_samples_dropped_total",
                                   "Samples dropped before they were evaluated, by reason.");
  dropped.Add({{"reason", "queue_full"}}, static_cast<double>(view.evaluator.dropped_queue_full));
  dropped.Add({{"reason", "late"}}, static_cast<double>(view.evaluator.dropped_late));
  std::move(dropped).MoveTo(families);
  add(Family::Gauge("egeria_quarantined_jobs", "Jobs whose journal was found damaged at the start."),
      static_cast<double>(view.journal.damaged_jobs));
  add(Family::Gauge("egeria_journal_lost_records", "Records that the journal had lost at the start."),
      static_cast<double>(view.journal.lost_records));
  add(Family::Gauge("egeria_journal_backlog_bytes", "Records that wait in memory, as the journal cannot be written."),
      static_cast<double>(view.journal.backlog_bytes));
  add(Family::Counter("egeria_journal_errors_total", "Writes that the journal has failed."),
      static_cast<double>(view.journal.errors));
}

}  // namespace

std::map<std::string, std::string> TrainingJobLabels(const std::vector<JobView>& jobs) {
  std::map<std::string, const JobView*> holders;  // by bare label
  auto bare = [](const JobView& job) {
    return job.summary.training_job().empty() ? job.summary.job_id() : job.summary.training_job();
  };
  auto precedes = [](const JobView& a, const JobView& b) {
    const bool a_runs = a.summary.phase() == v1::JOB_PHASE_RUNNING;
    const bool b_runs = b.summary.phase() == v1::JOB_PHASE_RUNNING;
    if (a_runs != b_runs) return a_runs;
    if (!a_runs && a.last_activity != b.last_activity) return a.last_activity > b.last_activity;
    return a.summary.job_id() < b.summary.job_id();
  };
  for (const JobView& job : jobs) {
    const JobView*& holder = holders[bare(job)];
    if (holder == nullptr || precedes(job, *holder)) holder = &job;
  }
  // A job's name may be what another job's label would be, but no two series may be the same.
  std::set<std::string> used;
  for (const auto& [label, holder] : holders) used.insert(label);
  std::map<std::string, std::string> labels;
  for (const JobView& job : jobs) {
    const std::string& id = job.summary.job_id();
    std::string label = bare(job);
    if (holders[label] != &job) {
      label = absl::StrCat(bare(job), "-", id.substr(0, 8));
      if (!used.insert(label).second) used.insert(label = absl::StrCat(bare(job), "-", id));
    }
    labels[id] = std::move(label);
  }
  return labels;
}

std::vector<prometheus::MetricFamily> JobMetrics(const ManagerView& view, absl::Duration keep_silent_jobs) {
  std::vector<prometheus::MetricFamily> families;
  AddTotalsOfAll(view, &families);
  const std::map<std::string, std::string> labels = TrainingJobLabels(view.jobs);
  JobFamilies of_jobs;
  for (const JobView& job : view.jobs) {
    if (job.summary.connected_ranks() == 0 && view.now - job.last_activity > keep_silent_jobs) continue;
    const Labels label = {{"training_job", labels.at(job.summary.job_id())}};
    of_jobs.AddSummary(label, job.summary);
    of_jobs.AddPolicy(label, job);
    of_jobs.AddTotals(label, job.totals);
    if (job.account) of_jobs.AddAccount(label, *job.account);
    if (job.cache) of_jobs.AddCache(label, *job.cache);
  }
  std::move(of_jobs).MoveTo(&families);
  return families;
}

}  // namespace egeria::controller
