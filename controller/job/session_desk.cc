#include "controller/job/session_desk.h"

#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "controller/job/directives.h"

namespace egeria::controller {
namespace {

// The job that a stream wants to join. Errors: those of SessionDesk::Open(), but for [RANK_CONFLICT].
absl::StatusOr<Job*> FindJobFor(const v1::Open& open, const rpc::Peer& caller, const JobTable& table) {
  Job* const job = table.Find(JobId(open.job_id()));
  if (job != nullptr) EGERIA_RETURN_IF_ERROR(job->state.ownership().Check(caller, open.secret()));
  // A job known from the journal only has no graphs yet: its workers must register it again.
  if (job == nullptr || !job->live.registered || open.generation() > job->state.generation().value()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "register this job and generation first");
  }
  if (open.generation() < job->state.generation().value()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "generation ",
                      job->state.generation().value(), " of this job has registered; this is ", open.generation());
  }
  if (open.rank() < 0 || open.rank() >= job->state.registration().world_size()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "rank ", open.rank(), " of ",
                      job->state.registration().world_size());
  }
  return job;
}

}  // namespace

absl::StatusOr<SessionId> SessionDesk::Open(const v1::Open& open, std::weak_ptr<SessionListener> listener,
                                            const rpc::Peer& caller) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  if (jobs_->stopped) return absl::UnavailableError("the controller is going down");
  EGERIA_ASSIGN_OR_RETURN(Job* const job, FindJobFor(open, caller, jobs_->table));
  RankTable& ranks = job->live.ranks;
  const int sampler_before = ranks.Sampler();
  if (const Rank* old = ranks.Find(open.rank()); old != nullptr && old->connected()) {
    if (old->incarnation != open.incarnation()) {
      return NamedError(absl::StatusCode::kAlreadyExists, "RANK_CONFLICT", "another live process is rank ", open.rank(),
                        " of this job's generation ", open.generation());
    }
    effects.Tell(old->listener, [](SessionListener& listener) { listener.OnClose(SessionIsOver()); });
  }
  Rank& rank = ranks.Join(open.rank(), open.incarnation());
  rank.listener = std::move(listener);
  rank.watermark = PlanId();  // until it says
  const SessionId session = jobs_->table.BeginSession(*job, open.rank(), rank);
  const absl::Time now = job->live.last_activity = jobs_->options.clock();
  // The upload that the sampling rank was sending went with its stream.
  const bool lost_upload = ranks.Sampler() == open.rank() && job->live.requests.SamplerChanged(now);
  if (lost_upload || ranks.Sampler() != sampler_before) ranks.PushDirectives(effects);
  return session;
}

void SessionDesk::Close(SessionId session) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return;
  LiveJob& job = seat->job->live;
  const bool sampled = seat->samples();
  jobs_->table.EndSession(*seat);
  job.last_activity = jobs_->options.clock();
  if (sampled) {
    job.requests.SamplerChanged(job.last_activity);
    job.ranks.PushDirectives(effects);
  }
}

absl::Status SessionDesk::Heartbeat(SessionId session, const v1::Heartbeat& heartbeat) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return SessionIsOver();
  Job& job = *seat->job;
  Rank& rank = *seat->rank;
  EGERIA_RETURN_IF_ERROR(ValidateHeartbeat(heartbeat, job.state.module_count()));
  rank.heard = true;
  rank.step = heartbeat.step();
  rank.frozen_prefix = heartbeat.frozen_prefix();
  rank.watermark = PlanId(heartbeat.plan_watermark());
  rank.counters = heartbeat.counters();
  job.live.last_activity = jobs_->options.clock();
  job.live.last_heartbeat = jobs_->options.wall_clock();
  effects.TellEvaluator(
      [id = job.id, step = heartbeat.step()](reference::Evaluator& evaluator) { evaluator.ReportStep(id, step); });
  if (job.state.finished()) return absl::OkStatus();
  if (seat->number == 0) {
    if (heartbeat.has_account()) job.live.account = heartbeat.account();
    if (heartbeat.has_cache()) {
      job.live.cache = heartbeat.cache();
      job.live.cache->set_state(Printable(heartbeat.cache().state()));
      job.live.cache->set_reason(Printable(heartbeat.cache().reason()));
    }
    int64_t step = heartbeat.losses().first_step();
    for (const float loss : heartbeat.losses().values()) job.live.losses.Add(step++, loss);
    const ObservationFilter before = job.live.filter;
    const std::vector<v1::Observation> observations = job.live.filter.Take(heartbeat, job.state);
    // FactWriter logs and counts a journal that cannot be written; the worker keeps its losses meanwhile.
    if (!jobs_->facts.CommitObservations(job, observations, effects).ok()) job.live.filter = before;
  }
  // A decision that waits for the journal comes before the end.
  if (heartbeat.finished() && job.state.pending_decisions().empty()) Finish(job, heartbeat.step(), effects);
  if (job.live.requests.Tick(jobs_->options.clock())) job.live.ranks.PushDirectives(effects);
  return absl::OkStatus();
}

void SessionDesk::Finish(Job& job, int64_t step, Effects& effects) {
  storage::v1::Fact fact = jobs_->facts.NewFact();
  fact.mutable_finished()->set_step(step);
  if (!jobs_->facts.Commit(job, fact).ok()) return;  // the next heartbeat says it again
  LogInfo("job ", job.id.text(), ": finished at step ", step);
  RefreshRequests(job, jobs_->options, effects);
  effects.TellEvaluator([id = job.id](reference::Evaluator& evaluator) { evaluator.RemoveJob(id); });
}

std::optional<v1::Directive> SessionDesk::DirectiveFor(SessionId session) const {
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return std::nullopt;
  return DirectiveOf(*seat->job, seat->number, *seat->rank, jobs_->options);
}

}  // namespace egeria::controller
