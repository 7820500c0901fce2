#include "controller/job/upload_desk.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/upload_judge.h"

namespace egeria::controller {
namespace {

// Counts what a rank sent in vain, and logs it now and then. Returns the error's name.
std::string CountRefusal(const JobTable::Seat& seat, const char* what, const absl::Status& why) {
  std::string name = NameOf(why);
  const int64_t times = ++seat.job->live.totals.uploads_refused[name];
  // Stale ones are normal after every decision.
  if (name != "STALE_REQUEST" && WorthSaying(times)) {
    LogWarning("job ", seat.job->id.text(), ": rank ", seat.number, "'s ", what, " is refused: ", why.message());
  }
  return name;
}

// True if the standing requests changed.
bool BookRefusal(const JobTable::Seat& seat, const v1::UploadBegin& begin, const absl::Status& why, absl::Time now) {
  StandingRequests& requests = seat.job->live.requests;
  const std::string name = CountRefusal(seat, begin.has_snapshot() ? "snapshot" : "sample", why);
  if (!begin.has_snapshot()) return name == "NO_REFERENCE" && requests.ReferenceLost(now);
  return requests.CheckSnapshot(begin.snapshot()).ok() && requests.SnapshotRefused(now);
}

// True if the standing requests changed.
bool BookTaken(LiveJob& job, const v1::UploadBegin& begin, int64_t bytes, absl::Time now) {
  if (begin.has_snapshot()) {
    ++job.totals.snapshots_received;
    job.totals.snapshot_bytes += bytes;
    return job.requests.SnapshotTaken(begin.snapshot(), now);
  }
  ++job.totals.samples_received;
  job.requests.SampleTaken(begin.sample());
  return false;
}

}  // namespace

absl::Status UploadDesk::Check(SessionId session, const v1::UploadBegin& begin) const {
  const std::optional<JobTable::Seat> seat = table_->Find(session);
  return seat ? JudgeUpload(*seat, begin) : SessionIsOver();
}

absl::StatusOr<UploadDesk::Accepted> UploadDesk::Accept(SessionId session, const v1::UploadBegin& begin,
                                                        Effects& effects) {
  if (absl::Status wanted = Check(session, begin); !wanted.ok()) {
    Book(session, begin, 0, wanted, effects);
    return wanted;
  }
  const Job& job = *table_->Find(session)->job;
  return Accepted{job.id, !(begin.has_snapshot() && job.live.graphs.IsLocal(begin.snapshot().module()))};
}

void UploadDesk::Book(SessionId session, const v1::UploadBegin& begin, int64_t bytes, const absl::Status& status,
                      Effects& effects) {
  const std::optional<JobTable::Seat> seat = table_->Find(session);
  if (!seat) return;
  const absl::Time now = options_->clock();
  const bool changed =
      status.ok() ? BookTaken(seat->job->live, begin, bytes, now) : BookRefusal(*seat, begin, status, now);
  if (changed) seat->job->live.ranks.PushDirectives(effects);
}

absl::Status UploadDesk::TakeReading(SessionId session, const v1::Reading& reading, Effects& effects) {
  const std::optional<JobTable::Seat> seat = table_->Find(session);
  if (!seat) return SessionIsOver();
  LiveJob& job = seat->job->live;
  absl::Status taken = JudgeReading(*seat, reading);
  if (taken.ok()) {
    job.requests.SampleTaken(HeaderOf(reading));
    ++job.totals.evaluations["local"];
    taken = facts_->CommitReading(*seat->job, reading.module(), reading.step(), reading.plasticity(), effects);
  }
  if (!taken.ok()) CountRefusal(*seat, "reading", taken);
  return taken;
}

absl::Status UploadDesk::TakeGradients(SessionId session, const v1::GradientReading& reading, Effects& effects) {
  const std::optional<JobTable::Seat> seat = table_->Find(session);
  if (!seat) return SessionIsOver();
  LiveJob& job = seat->job->live;
  absl::Status taken = JudgeGradients(*seat, reading);
  if (taken.ok()) {
    job.gradients.Taken(reading);
    v1::Observation observation;
    *observation.mutable_gradients() = reading;
    // These belong to the stream, not to the step.
    observation.mutable_gradients()->clear_request_version();
    observation.mutable_gradients()->clear_upload_id();
    taken = facts_->CommitMeasured(*seat->job, reading.step(), std::move(observation), effects);
  }
  if (taken.ok()) {
    ++job.totals.gradient_readings;
  } else {
    CountRefusal(*seat, "gradients", taken);
  }
  return taken;
}

void UploadDesk::TakeEvaluation(const reference::Evaluator::Result& result, Effects& effects) {
  Job* const job = table_->Find(result.job);
  if (job == nullptr) return;
  LiveJob& live = job->live;
  const int module = static_cast<int>(result.module.value());
  if (!result.evaluation.ok() || !std::isfinite(result.evaluation->plasticity)) {
    const absl::Status why = result.evaluation.ok() ? NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED",
                                                                 "the plasticity is not finite")
                                                    : result.evaluation.status();
    ++live.totals.uploads_refused["REFERENCE_FAILED"];
    if (!std::exchange(live.evaluation_failed, true)) {
      LogWarning("job ", job->id.text(), ": module ", module, " could not be evaluated: ", why.message());
    }
    if (const Rank* rank = live.ranks.Find(live.ranks.Sampler())) {
      effects.Tell(rank->listener,
                   [tag = result.tag, why](SessionListener& listener) { listener.OnUploadRefused(tag, why); });
    }
    return;
  }
  live.totals.reference_seconds[result.evaluation->backend] += absl::ToDoubleSeconds(result.evaluation->compute);
  ++live.totals.evaluations[result.evaluation->backend];
  if (job->state.finished() || !live.requests.IsCurrent(module, result.request_version)) return;
  // A failure is logged there, and the worker has nothing that it could send again.
  facts_->CommitReading(*job, module, result.step, result.evaluation->plasticity, effects).IgnoreError();
}

}  // namespace egeria::controller
