// The ranks' streams: what they tell, what they are told, and what they upload.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/job.h"
#include "controller/job/job_manager.h"
#include "controller/job/proto_time.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

constexpr size_t kMaxPlansPerDirective = 64;

// "STALE_REQUEST" of "[STALE_REQUEST] ...".
std::string NameOf(const absl::Status& status) {
  const std::string message(status.message());
  const size_t end = message.find(']');
  return message.empty() || message[0] != '[' || end == std::string::npos ? "OTHER" : message.substr(1, end - 1);
}

absl::Status BadMessage(const std::string& what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", what);
}

// A module outside the job's. Errors: NOT_FOUND [UNKNOWN_MODULE].
absl::Status CheckModule(int module, int count) {
  if (module >= 0 && module < count) return absl::OkStatus();
  return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "module ", module, " of ", count);
}

// Counts what a rank sent in vain, and logs it now and then. Returns the error's name.
std::string CountRefusal(const JobId& job, int rank, const char* what, const absl::Status& why, JobTotals* totals) {
  std::string name = NameOf(why);
  const int64_t times = ++totals->uploads_refused[name];
  // Stale ones are normal after every decision.
  if (name != "STALE_REQUEST" && WorthSaying(times)) {
    LogWarning("job ", job.text(), ": rank ", rank, "'s ", what, " is refused: ", why.message());
  }
  return name;
}

absl::Status NoSession() { return absl::AbortedError("this stream was replaced or its job has gone"); }

// The sample that a reading stands for.
v1::SampleHeader HeaderOf(const v1::Reading& reading) {
  v1::SampleHeader header;
  header.set_module(reading.module());
  header.set_first_module(reading.module());
  header.set_step(reading.step());
  header.set_request_version(reading.request_version());
  return header;
}

// What the metric compares must be of exactly the batch that was asked for: values of different batch sizes do not
// compare.
absl::Status CheckCompared(const v1::UploadBegin& begin, const v1::SamplingRequest& request) {
  const bool norm = request.metric() == v1::ACTIVATION_METRIC_NORM;
  const char* const name = norm ? "output" : "gram";
  const int batch = request.batch_size();
  const v1::TensorSpec* found = begin.tensors_size() > 0 ? &begin.tensors(begin.tensors_size() - 1) : nullptr;
  if (found == nullptr || begin.tensors_size() < 2 || found->name() != name) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "a sample is the module's inputs and, last, '",
                      name, "'");
  }
  if (found->dtype() != v1::DATA_TYPE_FLOAT32) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DTYPE", "'", name, "' is to be float32");
  }
  if (found->shape_size() != 2 || found->shape(0) != batch || (!norm && found->shape(1) != batch)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "'", name, "' is to be ", batch, " x ",
                      norm ? "the size of a sample's output" : absl::StrCat(batch));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobManager::Job*> JobManager::FindJob(const JobId& id) const {
  auto found = jobs_.find(id);
  if (found == jobs_.end()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "no job has the id ", id.text());
  }
  return found->second.get();
}

std::optional<JobManager::Found> JobManager::Find(SessionId session) const {
  auto entry = sessions_.find(session);
  if (entry == sessions_.end()) return std::nullopt;
  auto job = jobs_.find(entry->second.first);
  if (job == jobs_.end()) return std::nullopt;
  auto rank = job->second->ranks.find(entry->second.second);
  if (rank == job->second->ranks.end() || rank->second.session != session) return std::nullopt;
  return Found{job->second.get(), &rank->second, rank->first};
}

absl::StatusOr<SessionId> JobManager::OpenSession(const v1::Open& open, std::weak_ptr<SessionListener> listener) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) return absl::UnavailableError("the controller is going down");
  auto found = jobs_.find(JobId(open.job_id()));
  // A job known from the journal only has no graphs yet: its workers must register it again.
  if (found == jobs_.end() || !found->second->registered_here ||
      open.generation() > found->second->state.generation().value()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "register this job and generation first");
  }
  Job& job = *found->second;
  if (open.generation() < job.state.generation().value()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "generation ",
                      job.state.generation().value(), " of this job has registered; this is ", open.generation());
  }
  if (open.rank() < 0 || open.rank() >= job.state.registration().world_size()) {
    return BadMessage(absl::StrCat("rank ", open.rank(), " of ", job.state.registration().world_size()));
  }
  const int sampler_before = job.Sampler();
  Rank& rank = job.ranks[open.rank()];
  if (rank.session.value() != 0) {
    if (rank.incarnation != open.incarnation()) {
      return NamedError(absl::StatusCode::kAlreadyExists, "RANK_CONFLICT", "another live process is rank ", open.rank(),
                        " of this job's generation ", open.generation());
    }
    sessions_.erase(rank.session);
    effects.Tell(rank.listener, [](SessionListener& old) { old.OnClose(NoSession()); });
  }
  if (rank.incarnation != open.incarnation()) {
    v1::Counters& before = job.counters_before;
    before.set_samples_dropped(before.samples_dropped() + rank.counters.samples_dropped());
    before.set_reconnects(before.reconnects() + rank.counters.reconnects());
    rank.counters.Clear();
  }
  last_session_ = last_session_.next();
  rank.session = last_session_;
  rank.incarnation = open.incarnation();
  rank.listener = std::move(listener);
  rank.watermark = PlanId();  // until it says
  sessions_[last_session_] = {job.id, open.rank()};
  job.last_activity = options_.clock();
  // Whatever the sampling rank was uploading went with its stream.
  const bool lost_upload = job.Sampler() == open.rank() && job.requests.SamplerChanged(options_.clock());
  if (lost_upload || job.Sampler() != sampler_before) PushDirectives(job, effects);
  return last_session_;
}

void JobManager::CloseSession(SessionId session) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  sessions_.erase(session);
  if (!found) return;
  Job& job = *found->job;
  const bool sampled = job.Sampler() == found->rank_number;
  found->rank->session = SessionId();
  found->rank->listener.reset();
  job.last_activity = options_.clock();
  if (sampled) {
    job.requests.SamplerChanged(options_.clock());
    PushDirectives(job, effects);
  }
}

double JobManager::SecondsOfReference(const Job& job) const {
  if (!SharesCores(job.state.registration())) return 0;
  double seconds = 0;
  for (const auto& [backend, compute] : job.totals.reference_seconds) seconds += compute;
  return seconds / options_.cores;
}

absl::Status JobManager::Heartbeat(SessionId session, const v1::Heartbeat& heartbeat) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return NoSession();
  Job& job = *found->job;
  Rank& rank = *found->rank;
  EGERIA_RETURN_IF_ERROR(ValidateHeartbeat(heartbeat, job.state.module_count()));
  rank.heard = true;
  rank.step = heartbeat.step();
  rank.frozen_prefix = heartbeat.frozen_prefix();
  rank.watermark = PlanId(heartbeat.plan_watermark());
  rank.counters = heartbeat.counters();
  job.last_activity = job.last_heartbeat = options_.clock();
  effects.Add(
      [evaluator = evaluator_.get(), id = job.id, step = heartbeat.step()] { evaluator->ReportStep(id, step); });
  if (job.state.finished()) return absl::OkStatus();
  if (found->rank_number == 0) {
    if (heartbeat.has_account()) job.account = heartbeat.account();
    const ObservationFilter before = job.filter;
    const std::vector<v1::Observation> observations = job.filter.Take(heartbeat, job.state);
    // A journal that cannot be written is logged and counted there; the worker keeps its losses meanwhile.
    if (!CommitObservations(job, observations, effects).ok()) job.filter = before;
  }
  if (heartbeat.finished() && job.state.pending_decisions().empty()) {
    storage::v1::Fact fact;
    *fact.mutable_time() = TimeToProto(options_.clock());
    fact.mutable_finished()->set_step(heartbeat.step());
    if (Commit(job, {fact}, /*sync=*/true, effects).ok()) {
      LogInfo("job ", job.id.text(), ": finished at step ", heartbeat.step());
      RefreshRequests(job, effects);
      effects.Add([evaluator = evaluator_.get(), id = job.id] { evaluator->RemoveJob(id); });
    }
  }
  if (job.requests.Tick(options_.clock())) PushDirectives(job, effects);
  return absl::OkStatus();
}

std::optional<v1::Directive> JobManager::DirectiveFor(SessionId session) const {
  v1::Directive directive;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return std::nullopt;
  const Job& job = *found->job;
  directive.set_generation(job.state.generation().value());
  directive.set_mode(job.state.mode());
  if (found->rank_number == job.Sampler()) {
    if (auto sampling = job.requests.sampling()) *directive.mutable_sampling() = *sampling;
    if (auto snapshot = job.requests.snapshot()) *directive.mutable_snapshot() = *snapshot;
    if (auto gradients = job.gradients.request()) *directive.mutable_gradients() = *gradients;
  }
  for (const JobState::Plan& plan : job.state.PlansAbove(found->rank->watermark, kMaxPlansPerDirective)) {
    v1::Plan* out = directive.add_plans();
    out->set_plan_id(plan.id.value());
    out->set_generation(plan.generation.value());
    out->set_frozen_prefix(plan.frozen_prefix);
    out->set_reason(plan.reason);
  }
  if (found->rank_number == 0) {
    directive.set_loss_watermark(job.filter.LossWatermark(job.state));
    directive.set_reference_seconds(SecondsOfReference(job));
  }
  return directive;
}

void JobManager::RefreshRequests(Job& job, Effects& effects) {
  std::optional<StandingRequests::Subject> subject;
  std::string blocked;
  const auto monitoring = job.state.policy().monitoring();
  if (monitoring && job.graphs_known && !job.state.finished()) {
    subject = StandingRequests::Subject{*monitoring, monitoring->module, job.state.epoch(),
                                        job.state.generation().value(), job.graph_version};
    subject->local = job.IsLocal(monitoring->module);
    // A worker evaluates the one module; the prefix before it is frozen and the same for both models.
    if (options_.scope == ReferenceScope::kPrefix && !subject->local) subject->first_module = 0;
    for (int i = subject->first_module; i <= monitoring->module; ++i) {
      absl::Status usable = job.module_status[i];
      if (usable.ok() && !subject->local && job.IsLocal(i)) {
        usable = NamedError(absl::StatusCode::kFailedPrecondition, "LOCAL_REFERENCE",
                            "its worker holds the reference, which no prefix of the controller's can use");
      }
      if (usable.ok()) continue;
      blocked = absl::StrCat("module ", i, " ('", job.state.registration().modules(i).name(),
                             "') cannot be evaluated: ", usable.message());
      subject.reset();
      break;
    }
    if (!blocked.empty() && blocked != job.blocked) {
      LogWarning("job ", job.id.text(), ": nothing more can freeze: ", blocked);
    }
  }
  job.blocked = blocked;
  const std::string by_policy = job.state.policy().blocked();
  if (job.blocked_by_policy.empty() && !by_policy.empty()) {
    LogWarning("job ", job.id.text(), ": nothing freezes now: ", by_policy);
  }
  job.blocked_by_policy = by_policy;
  const bool samples_changed = job.requests.Update(subject, options_.clock());
  // A paused policy sees none, so that a probe of it would not end.
  const bool measures = !job.state.finished() && !job.state.paused();
  const auto gradients = measures ? job.state.policy().gradient_monitoring() : std::nullopt;
  const bool gradients_changed = job.gradients.Update(gradients, job.state.generation().value(), options_.clock());
  if (samples_changed || gradients_changed) PushDirectives(job, effects);
}

void JobManager::PushDirectives(const Job& job, Effects& effects) {
  for (const auto& [number, rank] : job.ranks) {
    if (rank.session.value() == 0) continue;
    effects.Tell(rank.listener, [](SessionListener& listener) { listener.OnDirectiveChanged(); });
  }
}

// --- Uploads ---

absl::Status JobManager::CheckUploadLocked(const Found& found, const v1::UploadBegin& begin) const {
  if (found.rank_number != found.job->Sampler()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", "another rank samples for this job");
  }
  const auto local = [](const char* what) {
    return NamedError(absl::StatusCode::kInvalidArgument, "LOCAL_REFERENCE",
                      "its worker evaluates this module's reference: ", what);
  };
  if (begin.has_snapshot()) {
    EGERIA_RETURN_IF_ERROR(found.job->requests.CheckSnapshot(begin.snapshot()));
    if (!found.job->IsLocal(begin.snapshot().module()) || begin.tensors_size() == 0) return absl::OkStatus();
    return local("a snapshot of it has no tensors");
  }
  EGERIA_RETURN_IF_ERROR(found.job->requests.CheckSample(begin.sample()));
  if (found.job->IsLocal(begin.sample().module())) return local("it sends readings, not samples");
  return CheckCompared(begin, *found.job->requests.sampling());
}

absl::Status JobManager::CheckUpload(SessionId session, const v1::UploadBegin& begin) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return NoSession();
  const int module = begin.has_snapshot() ? begin.snapshot().module() : begin.sample().module();
  EGERIA_RETURN_IF_ERROR(CheckModule(module, found->job->state.module_count()));
  return CheckUploadLocked(*found, begin);
}

absl::Status JobManager::FinishUpload(SessionId session, const v1::UploadBegin& begin,
                                      std::vector<WireTensor> tensors) {
  JobId id;
  bool local_snapshot = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::optional<Found> found = Find(session);
    if (!found) return NoSession();
    local_snapshot = begin.has_snapshot() && found->job->IsLocal(begin.snapshot().module());
    if (absl::Status wanted = CheckUploadLocked(*found, begin); !wanted.ok()) {
      ++found->job->totals.uploads_refused[NameOf(wanted)];
      return wanted;
    }
    id = found->job->id;
  }
  int64_t bytes = 0;
  for (const WireTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.size());
  absl::Status taken;
  if (local_snapshot) {
    // The worker has it; that it has been taken is all there is to know.
  } else if (begin.has_snapshot()) {
    const v1::SnapshotHeader& header = begin.snapshot();
    taken = evaluator_->SubmitSnapshot(id, ModuleIndex(header.module()), header.version(), header.step(),
                                       std::move(tensors));
  } else {
    const v1::SampleHeader& header = begin.sample();
    taken = evaluator_->SubmitSample(id, ModuleIndex(header.first_module()), ModuleIndex(header.module()),
                                     header.step(), header.request_version(), begin.upload_id(), std::move(tensors));
  }
  BookUpload(session, begin, bytes, taken);
  return taken;
}

void JobManager::BookUpload(SessionId session, const v1::UploadBegin& begin, int64_t bytes,
                            const absl::Status& status) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return;
  Job& job = *found->job;
  const absl::Time now = options_.clock();
  bool changed = false;
  if (!status.ok()) {
    const std::string name =
        CountRefusal(job.id, found->rank_number, begin.has_snapshot() ? "snapshot" : "sample", status, &job.totals);
    if (begin.has_snapshot()) {
      const bool wanted = job.requests.CheckSnapshot(begin.snapshot()).ok();
      changed = wanted && job.requests.SnapshotRefused(now);
    } else if (name == "NO_REFERENCE") {
      changed = job.requests.ReferenceLost(now);
    }
  } else if (begin.has_snapshot()) {
    ++job.totals.snapshots_received;
    job.totals.snapshot_bytes += bytes;
    changed = job.requests.SnapshotTaken(begin.snapshot(), now);
  } else {
    ++job.totals.samples_received;
    job.requests.SampleTaken(begin.sample());
  }
  if (changed) PushDirectives(job, effects);
}

absl::Status JobManager::CheckReading(const Found& found, const v1::Reading& reading) const {
  EGERIA_RETURN_IF_ERROR(CheckModule(reading.module(), found.job->state.module_count()));
  if (!std::isfinite(reading.plasticity())) {
    return NamedError(absl::StatusCode::kInvalidArgument, "READING_NOT_FINITE", "a plasticity of ",
                      reading.plasticity());
  }
  if (reading.plasticity() < 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "READING_NEGATIVE", "a plasticity of ", reading.plasticity());
  }
  if (!CanBeStep(reading.step())) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "a reading at step ", reading.step());
  }
  if (!found.job->IsLocal(reading.module())) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NOT_LOCAL", "module ", reading.module(),
                      " is evaluated here: its worker sends samples, not readings");
  }
  if (found.rank_number != found.job->Sampler()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", "another rank samples for this job");
  }
  return found.job->requests.CheckSample(HeaderOf(reading));
}

absl::Status JobManager::TakeReading(SessionId session, const v1::Reading& reading) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return NoSession();
  Job& job = *found->job;
  absl::Status taken = CheckReading(*found, reading);
  if (taken.ok()) {
    job.requests.SampleTaken(HeaderOf(reading));
    ++job.totals.evaluations["local"];
    taken = CommitReading(job, reading.module(), reading.step(), reading.plasticity(), effects);
  }
  if (!taken.ok()) CountRefusal(job.id, found->rank_number, "reading", taken, &job.totals);
  return taken;
}

absl::Status JobManager::TakeGradients(SessionId session, const v1::GradientReading& reading) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<Found> found = Find(session);
  if (!found) return NoSession();
  Job& job = *found->job;
  absl::Status taken = CheckGradients(reading, job.state.module_count());
  if (taken.ok() && found->rank_number != job.Sampler()) {
    taken = NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", "another rank tells for this job");
  }
  if (taken.ok()) taken = job.gradients.Check(reading);
  if (taken.ok()) {
    job.gradients.Taken(reading);
    v1::Observation observation;
    *observation.mutable_gradients() = reading;
    observation.mutable_gradients()->clear_request_version();  // of the stream, not of the step
    observation.mutable_gradients()->clear_upload_id();
    taken = CommitMeasured(job, reading.step(), std::move(observation), effects);
  }
  if (taken.ok()) {
    ++job.totals.gradient_readings;
  } else {
    CountRefusal(job.id, found->rank_number, "gradients", taken, &job.totals);
  }
  return taken;
}

void JobManager::CountRefusedUpload(SessionId session, const v1::UploadBegin& begin, const absl::Status& reason) {
  BookUpload(session, begin, 0, reason);
}

}  // namespace egeria::controller
