#include "controller/job/upload_desk.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/directives.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

template <typename... Args>
absl::Status Bad(const char* name, const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, name, what...);
}

absl::Status CheckModule(const Job& job, int module) {
  const int count = job.state.module_count();
  if (module >= 0 && module < count) return absl::OkStatus();
  return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "module ", module, " of ", count);
}

absl::Status CheckSampler(const JobTable::Seat& seat, const char* does) {
  if (seat.samples()) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", "another rank ", does, " for this job");
}

// An unspecified metric means SP loss.
v1::ActivationMetric MetricOf(v1::ActivationMetric given) {
  return given == v1::ACTIVATION_METRIC_UNSPECIFIED ? v1::ACTIVATION_METRIC_SP : given;
}

// The tensor that the metric compares must be of exactly the batch that was asked for: values of different batch sizes
// do not compare.
absl::Status CheckCompared(const v1::UploadBegin& begin, const v1::SamplingRequest& request) {
  const v1::ActivationMetric metric = MetricOf(request.metric());
  const bool norm = metric == v1::ACTIVATION_METRIC_NORM;
  const char* const name = norm ? "output" : "Gram matrix";
  const int batch = request.batch_size();
  if (begin.tensors_size() < 2 || MetricOf(begin.sample().metric()) != metric) {
    return Bad("BAD_SHAPE", "a sample is the module's inputs and, last, the ", name, ", and says that its metric is ",
               v1::ActivationMetric_Name(metric));
  }
  const v1::TensorSpec& compared = begin.tensors(begin.tensors_size() - 1);
  if (compared.dtype() != v1::DATA_TYPE_FLOAT32) return Bad("BAD_DTYPE", "the ", name, " is to be float32");
  if (compared.shape_size() != 2 || compared.shape(0) != batch || (!norm && compared.shape(1) != batch)) {
    return Bad("BAD_SHAPE", "the ", name, " is to be ", batch, " x ",
               norm ? "the size of a sample's output" : absl::StrCat(batch));
  }
  return absl::OkStatus();
}

absl::Status JudgeSnapshot(const Job& job, const v1::UploadBegin& begin) {
  EGERIA_RETURN_IF_ERROR(job.live.requests.CheckSnapshot(begin.snapshot()));
  if (!job.live.graphs.IsLocal(begin.snapshot().module()) || begin.tensors_size() == 0) return absl::OkStatus();
  return Bad("LOCAL_REFERENCE", "its worker evaluates this module's reference: a snapshot of it has no tensors");
}

absl::Status JudgeSample(const Job& job, const v1::UploadBegin& begin) {
  EGERIA_RETURN_IF_ERROR(job.live.requests.CheckSample(begin.sample()));
  if (job.live.graphs.IsLocal(begin.sample().module())) {
    return Bad("LOCAL_REFERENCE", "its worker evaluates this module's reference: it sends readings, not samples");
  }
  return CheckCompared(begin, *job.live.requests.sampling());
}

absl::Status JudgeUpload(const JobTable::Seat& seat, const v1::UploadBegin& begin) {
  const bool snapshot = begin.has_snapshot();
  EGERIA_RETURN_IF_ERROR(CheckModule(*seat.job, snapshot ? begin.snapshot().module() : begin.sample().module()));
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "samples"));
  return snapshot ? JudgeSnapshot(*seat.job, begin) : JudgeSample(*seat.job, begin);
}

// The sample that a reading stands for.
v1::SampleHeader HeaderOf(const v1::Reading& reading) {
  v1::SampleHeader header;
  header.set_module(reading.module());
  header.set_first_module(reading.module());
  header.set_step(reading.step());
  header.set_request_version(reading.request_version());
  return header;
}

absl::Status JudgeReading(const JobTable::Seat& seat, const v1::Reading& reading) {
  EGERIA_RETURN_IF_ERROR(CheckModule(*seat.job, reading.module()));
  if (!std::isfinite(reading.plasticity())) {
    return Bad("READING_NOT_FINITE", "a plasticity of ", reading.plasticity());
  }
  if (reading.plasticity() < 0) return Bad("READING_NEGATIVE", "a plasticity of ", reading.plasticity());
  if (!CanBeStep(reading.step())) return Bad("BAD_MESSAGE", "a reading at step ", reading.step());
  if (!seat.job->live.graphs.IsLocal(reading.module())) {
    return Bad("NOT_LOCAL", "module ", reading.module(), " is evaluated here: its worker sends samples, not readings");
  }
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "samples"));
  return seat.job->live.requests.CheckSample(HeaderOf(reading));
}

absl::Status JudgeGradients(const JobTable::Seat& seat, const v1::GradientReading& reading) {
  EGERIA_RETURN_IF_ERROR(CheckGradients(reading, seat.job->state.module_count()));
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "tells"));
  return seat.job->live.gradients.Check(reading);
}

// Counts an upload that a rank sent in vain, and logs it now and then. Returns the error's name.
std::string CountRefusal(const JobTable::Seat& seat, const char* what, const absl::Status& why) {
  std::string name = NameOfError(why);
  const int64_t times = ++seat.job->live.totals.uploads_refused[name];
  // Stale ones are normal after every decision.
  if (name != "STALE_REQUEST" && WorthSaying(times)) {
    LogWarning("job ", seat.job->id.text(), ": rank ", seat.number, "'s ", what, " is refused: ", why.message());
  }
  return name;
}

// Returns true if the standing requests changed.
bool BookRefusal(const JobTable::Seat& seat, const v1::UploadBegin& begin, const absl::Status& why, absl::Time now) {
  StandingRequests& requests = seat.job->live.requests;
  const std::string name = CountRefusal(seat, begin.has_snapshot() ? "snapshot" : "sample", why);
  if (!begin.has_snapshot()) return name == "NO_REFERENCE" && requests.ReferenceLost(now);
  return requests.CheckSnapshot(begin.snapshot()).ok() && requests.SnapshotRefused(now);
}

// Returns true if the standing requests changed.
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

absl::Status Submit(reference::Evaluator& evaluator, const JobId& job, const v1::UploadBegin& begin,
                    std::vector<WireTensor> tensors) {
  if (begin.has_snapshot()) {
    const v1::SnapshotHeader& header = begin.snapshot();
    return evaluator.SubmitSnapshot(job, ModuleIndex(header.module()), header.version(), header.step(),
                                    std::move(tensors));
  }
  const v1::SampleHeader& header = begin.sample();
  const bool norm = header.metric() == v1::ACTIVATION_METRIC_NORM;
  return evaluator.SubmitSample(
      job, {.first_module = ModuleIndex(header.first_module()),
            .module = ModuleIndex(header.module()),
            .step = header.step(),
            .request_version = header.request_version(),
            .tag = begin.upload_id(),
            .metric = norm ? plasticity::ActivationMetric::kActivationNorm : plasticity::ActivationMetric::kSpLoss,
            .tensors = std::move(tensors)});
}

}  // namespace

absl::Status UploadDesk::Check(SessionId session, const v1::UploadBegin& begin) const {
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  return seat ? JudgeUpload(*seat, begin) : SessionIsOver();
}

absl::Status UploadDesk::Finish(SessionId session, const v1::UploadBegin& begin, std::vector<WireTensor> tensors) {
  int64_t bytes = 0;
  for (const WireTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.size());
  absl::Status taken;
  std::optional<JobId> job;  // empty where the worker keeps the snapshot, for a reference of its own
  {
    const MutexLock lock(&jobs_->mutex);
    const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
    taken = seat ? JudgeUpload(*seat, begin) : SessionIsOver();
    if (taken.ok() && !(begin.has_snapshot() && seat->job->live.graphs.IsLocal(begin.snapshot().module()))) {
      job = seat->job->id;
    }
  }
  if (job) taken = Submit(*jobs_->evaluator, *job, begin, std::move(tensors));
  Book(session, begin, taken, bytes);
  return taken;
}

void UploadDesk::Book(SessionId session, const v1::UploadBegin& begin, const absl::Status& status, int64_t bytes) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return;
  const absl::Time now = jobs_->options.clock();
  const bool changed =
      status.ok() ? BookTaken(seat->job->live, begin, bytes, now) : BookRefusal(*seat, begin, status, now);
  if (changed) seat->job->live.ranks.PushDirectives(effects);
}

absl::Status UploadDesk::TakeReading(SessionId session, const v1::Reading& reading) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return SessionIsOver();
  LiveJob& job = seat->job->live;
  absl::Status taken = JudgeReading(*seat, reading);
  if (taken.ok()) {
    job.requests.SampleTaken(HeaderOf(reading));
    ++job.totals.evaluations["local"];
    taken = jobs_->facts.CommitReading(*seat->job, reading.module(), reading.step(), reading.plasticity(), effects);
  }
  if (!taken.ok()) CountRefusal(*seat, "reading", taken);
  return taken;
}

absl::Status UploadDesk::TakeGradients(SessionId session, const v1::GradientReading& reading) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  const std::optional<JobTable::Seat> seat = jobs_->table.Find(session);
  if (!seat) return SessionIsOver();
  LiveJob& job = seat->job->live;
  absl::Status taken = JudgeGradients(*seat, reading);
  if (taken.ok()) {
    job.gradients.Taken(reading);
    v1::Observation observation;
    *observation.mutable_gradients() = reading;
    // These fields belong to the stream, not to the step.
    observation.mutable_gradients()->clear_request_version();
    observation.mutable_gradients()->clear_upload_id();
    taken = jobs_->facts.CommitMeasured(*seat->job, reading.step(), std::move(observation), effects);
  }
  if (taken.ok()) {
    ++job.totals.gradient_readings;
  } else {
    CountRefusal(*seat, "gradients", taken);
  }
  return taken;
}

void UploadDesk::TakeEvaluation(const reference::Evaluator::Result& result) {
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  Job* const job = jobs_->table.Find(result.job);
  if (jobs_->stopped || job == nullptr) return;
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
    if (result.graph_refused && static_cast<size_t>(module) < live.graphs.module_status.size()) {
      live.graphs.module_status[static_cast<size_t>(module)] = why;
      RefreshRequests(*job, jobs_->options, effects);  // no more samples of it are asked for
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
  // FactWriter logs a failure, and the worker has nothing that it could send again.
  jobs_->facts.CommitReading(*job, module, result.step, result.evaluation->plasticity, effects).IgnoreError();
}

}  // namespace egeria::controller
