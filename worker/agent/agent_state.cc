#include "worker/agent/agent_state.h"

#include <cmath>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/rpc/grpc_status.h"

namespace egeria::worker {
namespace {

constexpr int kMaxBatch = 65'536;

// Heartbeats come at least so often in a training, however short it is, unless they were closer than that: policies
// decide at a part of the steps, and by heartbeats alone.
constexpr int64_t kHeartbeatsPerTraining = 100;
constexpr std::chrono::milliseconds kShortestPause{10};

// Tells the controller of the time, once a step without frozen layers has been measured.
void FillAccount(const TimeTotals& time, int frozen_prefix, v1::Heartbeat* heartbeat) {
  const auto active = time.seconds_per_step.find(0);
  if (!time.saved_seconds.has_value() || active == time.seconds_per_step.end()) return;
  v1::Account* account = heartbeat->mutable_account();
  account->set_saved_seconds(*time.saved_seconds);
  account->set_spent_seconds(time.total_spent_seconds());
  account->set_measuring_seconds(time.measuring_seconds());
  account->set_active_step_seconds(active->second);
  account->set_switch_seconds(time.switch_seconds);
  const auto frozen = time.seconds_per_step.find(frozen_prefix);
  if (frozen_prefix <= 0 || frozen == time.seconds_per_step.end()) return;
  account->set_frozen_step_seconds(frozen->second);
  account->set_frozen_prefix(frozen_prefix);
}

void FillCache(const CacheReport& report, v1::Heartbeat* heartbeat) {
  constexpr size_t kLongestReason = 900;  // the protocol's bound, less what a cut character may become
  v1::CacheReport* cache = heartbeat->mutable_cache();
  cache->set_state(report.state);
  cache->set_reason(Printable(Printable(report.reason).substr(0, kLongestReason)));
  cache->set_hits(report.hits);
  cache->set_computed(report.computed);
  cache->set_bytes_read(report.bytes_read);
  cache->set_saved_seconds(report.saved_seconds);
}

}  // namespace

AgentState::AgentState(const JobDescription& job, size_t queue_bytes, size_t queue_samples,
                       std::shared_ptr<Wakeup> wakeup)
    : rank_(job.rank),
      steps_to_tell_((job.total_steps + kHeartbeatsPerTraining - 1) / kHeartbeatsPerTraining),
      module_count_(static_cast<int>(job.modules.size())),
      wakeup_(std::move(wakeup)),
      generation_(job.generation),
      ledger_(job.generation, job.applied_plan, static_cast<int>(job.modules.size())),
      uploads_(queue_bytes, queue_samples) {
  report_.step = job.step;
  report_.frozen_prefix = job.frozen_prefix;
  report_.applied_plan = job.applied_plan;
}

void AgentState::ReportStep(const StepReport& report) {
  bool wake = false;
  {
    const MutexLock lock(&mutex_);
    if (given_up_) return;
    if (report.applied_plan != report_.applied_plan) {
      ++counters_.commits;
      ledger_.Forget(report.applied_plan);
      wake = true;
    }
    wake = wake || report.frozen_prefix != report_.frozen_prefix || IsTimeToTell(report.step);
    if (rank_ == 0 && report.loss.has_value()) losses_.Add(report.step, *report.loss);
    report_ = report;
    urgent_ = urgent_ || wake;
  }
  if (wake) wakeup_->Notify();
}

bool AgentState::IsTimeToTell(int64_t step) const {
  return rank_ == 0 && counters_.connected && steps_to_tell_ > 0 && step - told_step_ >= steps_to_tell_ &&
         std::chrono::steady_clock::now() - told_at_ >= kShortestPause;
}

std::optional<SamplingRequest> AgentState::sampling() const {
  const MutexLock lock(&mutex_);
  return sampling_;
}

std::optional<SnapshotRequest> AgentState::snapshot() const {
  const MutexLock lock(&mutex_);
  if (!snapshot_.has_value()) return std::nullopt;
  if (snapshot_->version != answered_version_) return snapshot_;
  for (ModuleIndex module = snapshot_->first_module; module <= snapshot_->module; module = module.next()) {
    if (!answered_.contains(module)) return snapshot_;
  }
  return std::nullopt;
}

std::optional<GradientRequest> AgentState::gradients() const {
  const MutexLock lock(&mutex_);
  return gradients_;
}

PlanId AgentState::watermark() const {
  const MutexLock lock(&mutex_);
  return ledger_.watermark();
}

std::optional<Plan> AgentState::plan(PlanId id) const {
  const MutexLock lock(&mutex_);
  return ledger_.Find(id);
}

bool AgentState::Offer(Upload upload) {
  const bool is_snapshot = std::holds_alternative<Snapshot>(upload);
  const absl::Status sound = CheckTensors(upload);
  if (!sound.ok()) LogError(is_snapshot ? "A snapshot" : "A sample", " cannot be sent: ", sound.message());
  {
    const MutexLock lock(&mutex_);
    if (!sound.ok() || given_up_) {
      if (!is_snapshot) ++counters_.samples_dropped;
      return false;
    }
    if (!Queue(std::move(upload))) return false;
  }
  wakeup_->Notify();
  return true;
}

bool AgentState::Queue(Upload upload) {
  const auto* const snapshot = std::get_if<Snapshot>(&upload);
  if (snapshot == nullptr) return uploads_.Add(std::move(upload));
  const ModuleIndex module = snapshot->module;
  const int64_t version = snapshot->version;
  if (snapshot_.has_value() && version < snapshot_->version) return false;
  if (!uploads_.Add(std::move(upload))) return false;
  if (version != answered_version_) answered_.clear();
  answered_version_ = version;
  answered_.insert(module);
  return true;
}

AgentCounters AgentState::counters() const {
  const MutexLock lock(&mutex_);
  AgentCounters counters = counters_;
  counters.samples_dropped += uploads_.samples_dropped();
  return counters;
}

void AgentState::FillProgress(v1::RegisterJobRequest* request) const {
  const MutexLock lock(&mutex_);
  request->set_step(report_.step);
  request->set_frozen_prefix(report_.frozen_prefix);
  request->set_applied_plan(report_.applied_plan.value());
  request->set_received_plan(ledger_.watermark().value());
}

void AgentState::BeginStream() {
  const MutexLock lock(&mutex_);
  if (streams_++ > 0) ++counters_.reconnects;
  losses_.Rewind();
  snapshot_.reset();
  // A snapshot that a broken stream carried may not have arrived: only those that are still here count as answered.
  std::erase_if(answered_, [this](ModuleIndex module) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !uploads_.HoldsSnapshot(answered_version_, module);
  });
  urgent_ = true;
}

void AgentState::EndStream(std::optional<Upload> unsent) {
  const MutexLock lock(&mutex_);
  counters_.connected = false;
  if (unsent.has_value()) uploads_.Return(*std::move(unsent));
}

bool AgentState::HeartbeatIsUrgent() const {
  const MutexLock lock(&mutex_);
  return urgent_;
}

v1::Heartbeat AgentState::TakeHeartbeat() {
  v1::Heartbeat heartbeat;
  const MutexLock lock(&mutex_);
  told_step_ = report_.step;
  told_at_ = std::chrono::steady_clock::now();
  heartbeat.set_step(report_.step);
  heartbeat.set_frozen_prefix(report_.frozen_prefix);
  heartbeat.set_applied_plan(report_.applied_plan.value());
  heartbeat.set_plan_watermark(ledger_.watermark().value());
  heartbeat.mutable_learning_rates()->Assign(report_.learning_rates.begin(), report_.learning_rates.end());
  if (!report_.learning_rates.empty()) {
    heartbeat.set_zero_lr_prefix(report_.zero_lr_prefix);
    heartbeat.set_frozen_by_script(report_.frozen_by_script);
  }
  if (losses_.HasNext()) {
    const LossRun run = losses_.Next();
    heartbeat.mutable_losses()->set_first_step(run.first_step);
    heartbeat.mutable_losses()->mutable_values()->Assign(run.values.begin(), run.values.end());
  }
  if (report_.time != nullptr) FillAccount(*report_.time, report_.frozen_prefix, &heartbeat);
  if (report_.cache != nullptr) FillCache(*report_.cache, &heartbeat);
  v1::Counters* counters = heartbeat.mutable_counters();
  counters->set_samples_sent(counters_.samples_sent);
  counters->set_samples_dropped(counters_.samples_dropped + uploads_.samples_dropped());
  counters->set_snapshots_sent(counters_.snapshots_sent);
  counters->set_commits(counters_.commits);
  counters->set_reconnects(counters_.reconnects);
  urgent_ = losses_.HasNext();
  return heartbeat;
}

void AgentState::CountReference(double total) {
  if (!std::isfinite(total) || total < 0) return;
  if (reference_seconds_.has_value()) {
    const bool restarted = total < *reference_seconds_;
    counters_.reference_seconds += restarted ? total : total - *reference_seconds_;
  }
  reference_seconds_ = total;
}

void AgentState::TakeGeneration(Generation generation) {
  const MutexLock lock(&mutex_);
  generation_ = generation;
  ledger_.TakeGeneration(generation);
}

void AgentState::Apply(const v1::Directive& directive) {
  if (directive.generation() != generation_.value()) {
    LogOnce("generation", absl::StrCat("The controller sent a directive for generation ", directive.generation(),
                                       " to generation ", generation_.value(), "; it is passed over"));
    return;
  }
  std::optional<SamplingRequest> sampling;
  if (directive.has_sampling()) sampling = Checked(directive.sampling());
  std::optional<SnapshotRequest> snapshot;
  if (directive.has_snapshot()) snapshot = Checked(directive.snapshot());
  std::optional<GradientRequest> gradients;
  if (directive.has_gradients()) gradients = Checked(directive.gradients());

  std::vector<absl::Status> refusals;
  {
    const MutexLock lock(&mutex_);
    counters_.connected = true;
    sampling_ = sampling;
    snapshot_ = snapshot;
    gradients_ = gradients;
    uploads_.WantSnapshots(snapshot.has_value() ? std::optional(snapshot->version) : std::nullopt);
    // A restarted controller counts from the beginning.
    if (snapshot.has_value() && snapshot->version < answered_version_) answered_version_ = -1;
    losses_.Forget(directive.loss_watermark());
    CountReference(directive.reference_seconds());
    counters_.blocked = directive.blocked();
    counters_.advice = directive.advice();
    const PlanId before = ledger_.watermark();
    ledger_.SkipTo(PlanId(directive.base_plan()));
    for (const v1::Plan& plan : directive.plans()) {
      absl::Status status = ledger_.Deliver(
          Plan{PlanId(plan.plan_id()), Generation(plan.generation()), plan.frozen_prefix(), plan.reason()});
      // Plans are repeated until they are acknowledged.
      if (!status.ok() && !absl::IsAlreadyExists(status)) refusals.push_back(std::move(status));
    }
    counters_.plans_refused += static_cast<int64_t>(refusals.size());
    if (ledger_.watermark() != before) urgent_ = true;
  }
  for (const absl::Status& refusal : refusals) {
    LogOnce(std::string(rpc::ErrorName(refusal)),
            absl::StrCat("A plan of the controller is refused: ", refusal.message()));
  }
}

void AgentState::UploadRefused(const v1::UploadResult& result) {
  {
    const MutexLock lock(&mutex_);
    ++counters_.uploads_refused;
  }
  const absl::Status reason = absl::InvalidArgumentError(result.reason());
  // The controller has changed its mind while the upload was on its way: nothing to tell a user.
  if (rpc::ErrorName(reason) == "STALE_REQUEST") return;
  LogOnce(absl::StrCat("upload ", rpc::ErrorName(reason)),
          absl::StrCat("The controller could not use an upload: ", result.reason()));
}

std::optional<Upload> AgentState::TakeUpload() {
  const MutexLock lock(&mutex_);
  if (!counters_.connected) return std::nullopt;
  return uploads_.Take();
}

void AgentState::UploadSent(const Upload& upload) {
  const MutexLock lock(&mutex_);
  uploads_.Done();
  ++(std::holds_alternative<Snapshot>(upload) ? counters_.snapshots_sent : counters_.samples_sent);
}

void AgentState::GiveUp() {
  const MutexLock lock(&mutex_);
  given_up_ = true;
  sampling_.reset();
  snapshot_.reset();
  gradients_.reset();
  uploads_.Clear();
}

void AgentState::LogOnce(const std::string& key, const std::string& message) {
  if (logged_.insert(key).second) LogWarning(message, " (said once)");
}

std::optional<SamplingRequest> AgentState::Checked(const v1::SamplingRequest& request) {
  if (!ModulesAreValid(request.first_module(), request.module()) || request.interval_steps() < 1 ||
      request.batch_size() < 1 || request.batch_size() > kMaxBatch) {
    LogOnce("sampling", absl::StrCat("A sampling request of the controller is refused: ", request.ShortDebugString()));
    return std::nullopt;
  }
  return SamplingRequest{
      ModuleIndex(request.module()),
      ModuleIndex(request.first_module()),
      request.interval_steps(),
      request.batch_size(),
      request.version(),
      request.metric() == v1::ACTIVATION_METRIC_NORM ? ActivationMetric::kActivationNorm : ActivationMetric::kSpLoss};
}

std::optional<SnapshotRequest> AgentState::Checked(const v1::SnapshotRequest& request) {
  if (!ModulesAreValid(request.first_module(), request.module()) || request.version() < 0) {
    LogOnce("snapshot", absl::StrCat("A snapshot request of the controller is refused: ", request.ShortDebugString()));
    return std::nullopt;
  }
  return SnapshotRequest{ModuleIndex(request.module()), ModuleIndex(request.first_module()), request.version()};
}

std::optional<GradientRequest> AgentState::Checked(const v1::GradientRequest& request) {
  if (!ModulesAreValid(request.first_module(), request.first_module()) || request.interval_steps() < 1 ||
      request.version() < 0) {
    LogOnce("gradients",
            absl::StrCat("A request of the controller for gradients is refused: ", request.ShortDebugString()));
    return std::nullopt;
  }
  return GradientRequest{ModuleIndex(request.first_module()), request.interval_steps(), request.version()};
}

bool AgentState::ModulesAreValid(int32_t first, int32_t last) const {
  return 0 <= first && first <= last && last < module_count_;
}

}  // namespace egeria::worker
