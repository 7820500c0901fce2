#include "controller/job/standing_requests.h"

#include <algorithm>

#include "common/base/status.h"

namespace egeria::controller {
namespace {

bool SameSubject(const StandingRequests::Subject& a, const StandingRequests::Subject& b) {
  return a.monitoring.module == b.monitoring.module && a.monitoring.interval_steps == b.monitoring.interval_steps &&
         a.monitoring.batch_size == b.monitoring.batch_size && a.monitoring.metric == b.monitoring.metric &&
         a.first_module == b.first_module && a.epoch == b.epoch && a.generation == b.generation &&
         a.graphs == b.graphs && a.local == b.local;
}

template <typename... Args>
absl::Status Stale(const Args&... what) {
  return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", what...);
}

}  // namespace

int64_t StandingRequests::NextVersion(absl::Time now) {
  last_version_ = std::max(last_version_ + 1, absl::ToUnixMicros(now));
  return last_version_;
}

void StandingRequests::AskForSnapshot(absl::Time now) {
  snapshot_version_ = NextVersion(now);
  snapshot_wanted_ = true;
  snapshot_refused_ = false;
  snapshot_due_ = now + kSnapshotPatience;
  snapshot_received_.clear();
}

bool StandingRequests::Update(const std::optional<Subject>& subject, absl::Time now) {
  const bool same =
      subject.has_value() == subject_.has_value() && (!subject.has_value() || SameSubject(*subject, *subject_));
  subject_ = subject;
  if (same) return false;
  reference_ready_ = false;
  reference_step_ = -1;
  readings_since_snapshot_ = 0;
  last_sample_step_ = -1;
  snapshot_wanted_ = false;
  snapshot_refused_ = false;
  snapshot_retry_ = kSnapshotRetry;
  if (subject_) {
    sampling_version_ = NextVersion(now);
    AskForSnapshot(now);
  }
  return true;
}

bool StandingRequests::Tick(absl::Time now) {
  if (!subject_ || !(snapshot_wanted_ || snapshot_refused_) || now < snapshot_due_) return false;
  AskForSnapshot(now);
  return true;
}

bool StandingRequests::SamplerChanged(absl::Time now) {
  if (!subject_ || !(snapshot_wanted_ || subject_->local)) return false;
  if (subject_->local) reference_ready_ = false;
  AskForSnapshot(now);
  return true;
}

std::optional<v1::SamplingRequest> StandingRequests::sampling() const {
  if (!subject_ || !reference_ready_) return std::nullopt;
  v1::SamplingRequest request;
  request.set_module(subject_->monitoring.module);
  request.set_first_module(subject_->first_module);
  request.set_interval_steps(subject_->monitoring.interval_steps);
  request.set_batch_size(subject_->monitoring.batch_size);
  request.set_metric(subject_->monitoring.metric == plasticity::ActivationMetric::kSpLoss ? v1::ACTIVATION_METRIC_SP
                                                                                          : v1::ACTIVATION_METRIC_NORM);
  request.set_version(sampling_version_);
  return request;
}

std::optional<v1::SnapshotRequest> StandingRequests::snapshot() const {
  if (!subject_ || !snapshot_wanted_) return std::nullopt;
  v1::SnapshotRequest request;
  request.set_module(subject_->monitoring.module);
  request.set_first_module(subject_->first_module);
  request.set_version(snapshot_version_);
  return request;
}

absl::Status StandingRequests::CheckSample(const v1::SampleHeader& header) const {
  if (!subject_ || !reference_ready_) return Stale("no samples are wanted");
  if (header.request_version() != sampling_version_ || header.module() != subject_->monitoring.module ||
      header.first_module() != subject_->first_module) {
    return Stale("samples of module ", subject_->monitoring.module, ", version ", sampling_version_,
                 " are wanted, not of module ", header.module(), ", version ", header.request_version());
  }
  if (header.step() <= reference_step_) {
    return Stale("step ", header.step(), " is not after the reference's, ", reference_step_);
  }
  if (header.step() <= last_sample_step_) return Stale("step ", header.step(), " has been sampled already");
  return absl::OkStatus();
}

absl::Status StandingRequests::CheckSnapshot(const v1::SnapshotHeader& header) const {
  if (!subject_ || !snapshot_wanted_) return Stale("no snapshot is wanted");
  if (header.version() != snapshot_version_) {
    return Stale("version ", snapshot_version_, " is wanted, not ", header.version());
  }
  if (header.module() < subject_->first_module || header.module() > subject_->monitoring.module) {
    return Stale("modules ", subject_->first_module, " to ", subject_->monitoring.module, " are wanted, not module ",
                 header.module());
  }
  if (snapshot_received_.count(header.module()) > 0) return Stale("this snapshot is here already");
  return absl::OkStatus();
}

void StandingRequests::SampleTaken(const v1::SampleHeader& header) {
  last_sample_step_ = std::max(last_sample_step_, header.step());
}

bool StandingRequests::SnapshotTaken(const v1::SnapshotHeader& header, absl::Time now) {
  if (!CheckSnapshot(header).ok()) return false;  // something else is wanted by now
  snapshot_received_.insert(header.module());
  snapshot_due_ = now + kSnapshotPatience;
  const int wanted = subject_->monitoring.module - subject_->first_module + 1;
  if (static_cast<int>(snapshot_received_.size()) < wanted) return false;
  snapshot_wanted_ = false;
  snapshot_retry_ = kSnapshotRetry;
  reference_ready_ = true;
  reference_step_ = header.step();
  readings_since_snapshot_ = 0;
  return true;
}

bool StandingRequests::SnapshotRefused(absl::Time now) {
  if (!snapshot_wanted_) return false;
  snapshot_wanted_ = false;
  snapshot_refused_ = true;
  snapshot_due_ = now + snapshot_retry_;
  snapshot_retry_ = std::min(2 * snapshot_retry_, kLongestSnapshotRetry);
  return true;
}

bool StandingRequests::ReferenceLost(absl::Time now) {
  if (!subject_ || !reference_ready_) return false;
  reference_ready_ = false;
  AskForSnapshot(now);
  return true;
}

bool StandingRequests::IsCurrent(int module, int64_t request_version) const {
  return subject_ && module == subject_->monitoring.module && request_version == sampling_version_;
}

bool StandingRequests::ReadingTaken(absl::Time now) {
  ++readings_since_snapshot_;
  if (!subject_ || snapshot_wanted_ || snapshot_refused_) return false;
  if (readings_since_snapshot_ < subject_->monitoring.refresh_readings) return false;
  AskForSnapshot(now);
  return true;
}

}  // namespace egeria::controller
