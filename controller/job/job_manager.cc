#include "controller/job/job_manager.h"

#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/directives.h"

namespace egeria::controller {

absl::StatusOr<std::unique_ptr<JobManager>> JobManager::Start(JobManagerOptions options,
                                                              std::unique_ptr<Journal> journal,
                                                              const EvaluatorFactory& make_evaluator) {
  std::unique_ptr<JobManager> manager(new JobManager(std::move(options), std::move(journal)));
  EGERIA_RETURN_IF_ERROR(manager->Recover());
  EGERIA_ASSIGN_OR_RETURN(manager->jobs_.evaluator,
                          make_evaluator([uploads = &manager->uploads_](const reference::Evaluator::Result& result) {
                            uploads->TakeEvaluation(result);
                          }));
  return manager;
}

void JobManager::Stop() {
  {
    Effects effects(jobs_.evaluator.get());
    const MutexLock lock(&jobs_.mutex);
    if (jobs_.stopped) return;
    jobs_.stopped = true;
    for (auto& [id, job] : jobs_.table.jobs()) {
      jobs_.table.DismissRanks(*job, absl::UnavailableError("the controller is going down"), effects);
    }
  }
  if (jobs_.evaluator != nullptr) jobs_.evaluator->Stop();
  const MutexLock lock(&jobs_.mutex);
  if (absl::Status synced = jobs_.journal->Sync(); !synced.ok()) LogError("stopping: ", synced.ToString());
}

absl::Status JobManager::Recover() {
  Effects effects(nullptr);
  const MutexLock lock(&jobs_.mutex);
  EGERIA_ASSIGN_OR_RETURN(
      const auto damaged,
      jobs_.facts.Replay([this](const JobId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_.mutex) -> Job& {
        Job* const known = jobs_.table.Find(id);
        return known != nullptr ? *known : jobs_.table.Add(std::make_unique<Job>(id));
      }));
  Report(damaged, effects);
  for (auto& [id, job] : jobs_.table.jobs()) {
    job->live.last_activity = job->state.last_fact_time();
    job->live.totals.readings = job->state.readings();
    for (const v1::Decision& decision : job->state.decisions()) job->live.totals.Count(decision);
    if (job->state.divergences() > 0) {
      LogWarning("job ", id.text(), ": ", job->state.divergences(),
                 " recorded decisions are not those that this version would make; the recorded ones stand");
    }
    EGERIA_RETURN_IF_ERROR(jobs_.facts.CommitPendingDecisions(*job, effects));
  }
  if (!jobs_.table.jobs().empty()) LogInfo("recovered ", jobs_.table.jobs().size(), " jobs from the journal");
  return absl::OkStatus();
}

void JobManager::Report(const std::vector<Journal::Damaged>& damaged, Effects& effects) {
  for (const Journal::Damaged& job : damaged) {
    LogError("job ", job.job.text(), ": its journal is damaged: ", job.reason, "; ", job.lost,
             " of its records are lost, ", job.kept, " are read and ", job.aside, " behind the damage are kept aside; ",
             job.kept > 0 ? "it goes on from there" : "its workers will register it again");
    lost_records_ += job.lost;
    if (job.kept == 0) jobs_.table.Drop(job.job, absl::InternalError(job.reason), effects);
  }
  damaged_jobs_ = static_cast<int64_t>(damaged.size());
}

absl::Status JobManager::Tend() {
  const MutexLock lock(&jobs_.mutex);
  jobs_.journal->Tend();
  int64_t bytes = 0;
  for (const auto& [id, job] : jobs_.table.jobs()) bytes += job->state.fact_bytes();
  jobs_.facts.SetBytesOfAll(bytes);
  return jobs_.journal->health();
}

void JobManager::Maintain() {
  Effects effects(jobs_.evaluator.get());
  const MutexLock lock(&jobs_.mutex);
  const JobTable::Leftovers leftovers = jobs_.table.FindLeftovers(jobs_.options.clock());
  for (Job* job : leftovers.idle) {
    // Its snapshots would take the place of others'. Its workers register anew, graphs and all.
    job->live.registered = job->live.graphs.known = false;
    RefreshRequests(*job, jobs_.options, effects);
    effects.TellEvaluator([id = job->id](reference::Evaluator& evaluator) { evaluator.RemoveJob(id); });
  }
  for (const JobId& id : leftovers.expired) {
    if (absl::Status removed = jobs_.journal->Remove(id); !removed.ok()) {
      LogError("forgetting job ", id.text(), ": ", removed.message());
      continue;
    }
    LogInfo("job ", id.text(), ": past its retention, forgotten");
    jobs_.table.Drop(id, absl::NotFoundError("[UNKNOWN_JOB] past its retention"), effects);
  }
}

v1::ListJobsResponse JobManager::ListJobs() const {
  v1::ListJobsResponse response;
  const MutexLock lock(&jobs_.mutex);
  for (const auto& [id, job] : jobs_.table.jobs()) *response.add_jobs() = Summarize(*job);
  return response;
}

absl::StatusOr<std::vector<v1::ExportRecord>> JobManager::ExportJob(const JobId& id, ExportCursor* cursor) const {
  const MutexLock lock(&jobs_.mutex);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, jobs_.table.Get(id));
  return NextOfExport(*job, cursor);
}

absl::StatusOr<JobDetail> JobManager::ShowJob(const JobId& id) const {
  const MutexLock lock(&jobs_.mutex);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, jobs_.table.Get(id));
  return DetailOf(*job);
}

ManagerView JobManager::View() const {
  constexpr int kJobsAtOnce = 32;  // between which others get the lock
  ManagerView view;
  std::optional<JobId> last;
  for (bool more = true; more;) {
    const MutexLock lock(&jobs_.mutex);
    const auto& jobs = jobs_.table.jobs();
    auto next = last ? jobs.upper_bound(*last) : jobs.begin();
    for (int i = 0; i < kJobsAtOnce && next != jobs.end(); ++i, ++next) {
      view.jobs.push_back(ViewOf(*next->second));
      last = next->first;
    }
    more = next != jobs.end();
  }
  {
    const MutexLock lock(&jobs_.mutex);
    view.journal = {damaged_jobs_, lost_records_, jobs_.journal->errors(),
                    static_cast<int64_t>(jobs_.journal->backlog_bytes())};
  }
  view.now = jobs_.options.clock();
  view.evaluator = jobs_.evaluator->counters();
  return view;
}

std::string JobManager::DebugString(const JobId& id) const {
  const MutexLock lock(&jobs_.mutex);
  const Job* const job = jobs_.table.Find(id);
  return job == nullptr ? "" : job->state.DebugString();
}

}  // namespace egeria::controller
