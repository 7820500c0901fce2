#include "controller/job/job_table.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace egeria::controller {
namespace {

// The first heartbeat of a job that has registered comes sooner.
constexpr absl::Duration kTimeToBegin = absl::Seconds(10);

}  // namespace

absl::Status SessionIsOver() { return absl::AbortedError("this stream was replaced or its job has gone"); }

Job* JobTable::Find(const JobId& id) const {
  auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<Job*> JobTable::Get(const JobId& id) const {
  if (Job* job = Find(id)) return job;
  return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "no job has the id ", id.text());
}

absl::Status JobTable::CheckRoom(const std::string& owner, std::optional<JobId>* makes_room) const {
  const auto belongs = [&owner](const Job& job) { return job.state.ownership().owner == owner; };
  int64_t live = 0, owned = 0;
  for (const auto& [id, job] : jobs_) {
    if (job->state.finished()) continue;
    ++live;
    owned += belongs(*job) ? 1 : 0;
  }
  const int64_t share = options_->max_jobs - options_->max_jobs / 4;
  if (live < options_->max_jobs && owned < share) return absl::OkStatus();
  const Job* oldest = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (!HasDoneNothing(*job) || (owned >= share && !belongs(*job))) continue;
    if (oldest == nullptr || job->live.last_activity < oldest->live.last_activity) oldest = job.get();
  }
  if (oldest != nullptr && options_->clock() - oldest->live.last_activity > kTimeToBegin) {
    *makes_room = oldest->id;
    return absl::OkStatus();
  }
  return NamedError(absl::StatusCode::kResourceExhausted, "TOO_MANY_JOBS", live, " jobs have not finished, ", owned,
                    " of them by this owner; no more than ", options_->max_jobs, " are allowed, and ", share,
                    " of one owner");
}

Job& JobTable::Add(std::unique_ptr<Job> job) {
  std::unique_ptr<Job>& slot = jobs_[job->id];
  slot = std::move(job);
  return *slot;
}

void JobTable::DismissRanks(Job& job, const absl::Status& status, Effects& effects) {
  for (const auto& [number, rank] : job.live.ranks.ranks()) sessions_.erase(rank.session);
  job.live.ranks.DismissAll(status, effects);
}

void JobTable::Drop(JobId id, const absl::Status& status, Effects& effects) {
  Job* const job = Find(id);
  if (job == nullptr) return;
  DismissRanks(*job, status, effects);
  jobs_.erase(id);
  effects.TellEvaluator([id](reference::Evaluator& evaluator) { evaluator.RemoveJob(id); });
}

bool JobTable::HasDoneNothing(const Job& job) {
  return !job.state.finished() && job.live.last_heartbeat == absl::InfinitePast() && job.state.observations() == 0 &&
         job.state.decisions().empty() && job.live.ranks.Sampler() < 0;
}

JobTable::Leftovers JobTable::FindLeftovers(absl::Time now) const {
  Leftovers leftovers;
  std::vector<std::pair<absl::Time, JobId>> finished;
  for (const auto& [id, job] : jobs_) {
    if (job->live.ranks.Sampler() >= 0) continue;
    const absl::Duration silent = now - job->live.last_activity;
    const absl::Duration retention = job->state.finished()  ? options_->finished_retention
                                     : HasDoneNothing(*job) ? options_->unheard_retention
                                                            : options_->silent_retention;
    if (silent > retention) {
      leftovers.expired.push_back(id);
    } else if (job->state.finished()) {
      finished.emplace_back(job->live.last_activity, id);
    } else if (job->live.graphs.known && silent > options_->idle_reference) {
      leftovers.idle.push_back(job.get());
    }
  }
  std::sort(finished.begin(), finished.end());
  for (size_t i = 0; i + static_cast<size_t>(options_->max_jobs) < finished.size(); ++i) {
    leftovers.expired.push_back(finished[i].second);
  }
  return leftovers;
}

std::optional<JobTable::Seat> JobTable::Find(SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? std::nullopt : std::optional(found->second);
}

SessionId JobTable::BeginSession(Job& job, int number, Rank& rank) {
  sessions_.erase(rank.session);
  rank.session = last_session_ = last_session_.next();
  sessions_[rank.session] = {&job, &rank, number};
  return rank.session;
}

void JobTable::EndSession(const Seat& seat) {
  sessions_.erase(seat.rank->session);
  seat.rank->session = SessionId();
  seat.rank->listener.reset();
}

}  // namespace egeria::controller
