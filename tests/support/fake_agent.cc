#include "tests/support/fake_agent.h"

#include <utility>

namespace egeria::testing {

using Lock = std::lock_guard<std::mutex>;

void FakeLine::Want(std::optional<worker::SamplingRequest> sampling) {
  const Lock lock(mutex_);
  sampling_ = sampling;
}

void FakeLine::Want(std::optional<worker::SnapshotRequest> snapshot) {
  const Lock lock(mutex_);
  snapshot_ = snapshot;
  answered_.clear();
}

void FakeLine::Want(std::optional<worker::GradientRequest> gradients) {
  const Lock lock(mutex_);
  gradients_ = gradients;
}

void FakeLine::LoseSnapshots() {
  const Lock lock(mutex_);
  answered_.clear();
}

absl::Status FakeLine::Deliver(const worker::Plan& plan) {
  const Lock lock(mutex_);
  return ledger_.Deliver(plan);
}

void FakeLine::TakeUploads(bool taken) {
  const Lock lock(mutex_);
  taken_ = taken;
}

std::vector<worker::StepReport> FakeLine::reports() const {
  const Lock lock(mutex_);
  return reports_;
}

int FakeLine::refused() const {
  const Lock lock(mutex_);
  return refused_;
}

std::optional<bool> FakeLine::stopped() const {
  const Lock lock(mutex_);
  return stopped_;
}

void FakeAgent::ReportStep(const worker::StepReport& report) {
  const Lock lock(line_->mutex_);
  line_->reports_.push_back(report);
}

std::optional<worker::SamplingRequest> FakeAgent::sampling() const {
  const Lock lock(line_->mutex_);
  return line_->sampling_;
}

std::optional<worker::SnapshotRequest> FakeAgent::snapshot() const {
  const Lock lock(line_->mutex_);
  if (!line_->snapshot_.has_value()) return std::nullopt;
  const int64_t wanted = line_->snapshot_->module.value() - line_->snapshot_->first_module.value() + 1;
  if (static_cast<int64_t>(line_->answered_.size()) >= wanted) return std::nullopt;
  return line_->snapshot_;
}

std::optional<worker::GradientRequest> FakeAgent::gradients() const {
  const Lock lock(line_->mutex_);
  return line_->gradients_;
}

PlanId FakeAgent::watermark() const {
  const Lock lock(line_->mutex_);
  return line_->ledger_.watermark();
}

std::optional<worker::Plan> FakeAgent::plan(PlanId id) const {
  const Lock lock(line_->mutex_);
  return line_->ledger_.Find(id);
}

bool FakeAgent::Offer(worker::Upload upload) {
  const Lock lock(line_->mutex_);
  if (!line_->taken_) return ++line_->refused_, false;
  if (const auto* snapshot = std::get_if<worker::Snapshot>(&upload)) line_->answered_.insert(snapshot->module.value());
  line_->uploads_.push_back(std::move(upload));
  return true;
}

worker::AgentCounters FakeAgent::counters() const {
  const Lock lock(line_->mutex_);
  worker::AgentCounters counters;
  for (const worker::Upload& upload : line_->uploads_) {
    ++(std::holds_alternative<worker::Snapshot>(upload) ? counters.snapshots_sent : counters.samples_sent);
  }
  counters.samples_dropped = line_->refused_;
  return counters;
}

void FakeAgent::Stop(bool finished) {
  const Lock lock(line_->mutex_);
  if (!line_->stopped_.has_value()) line_->stopped_ = finished;
}

}  // namespace egeria::testing
