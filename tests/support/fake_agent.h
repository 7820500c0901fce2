#ifndef EGERIA_TESTS_SUPPORT_FAKE_AGENT_H_
#define EGERIA_TESTS_SUPPORT_FAKE_AGENT_H_

#include <mutex>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "worker/agent/agent.h"

namespace egeria::testing {

// Holds what a FakeAgent has been told and what it is to answer; outlives the agent, so that a test can look at it
// after the session has ended. Thread-safe.
class FakeLine {
 public:
  FakeLine(Generation generation, PlanId applied, int modules) : ledger_(generation, applied, modules) {}

  // The requests of the controller.
  void Want(std::optional<worker::SamplingRequest> sampling);
  void Want(std::optional<worker::SnapshotRequest> snapshot);
  void Want(std::optional<worker::GradientRequest> gradients);
  absl::Status Deliver(const worker::Plan& plan);
  // The stream broke after the last snapshots were queued: they are wanted again.
  void LoseSnapshots();
  // From now on uploads are refused (a full queue) or taken.
  void TakeUploads(bool taken);

  std::vector<worker::StepReport> reports() const;
  std::vector<worker::Sample> samples() const { return UploadsOf<worker::Sample>(); }
  std::vector<worker::Reading> readings() const { return UploadsOf<worker::Reading>(); }
  std::vector<worker::GradientReading> gradient_readings() const { return UploadsOf<worker::GradientReading>(); }
  std::vector<worker::Snapshot> snapshots() const { return UploadsOf<worker::Snapshot>(); }
  int refused() const;
  std::optional<bool> stopped() const;  // with this `finished`

 private:
  friend class FakeAgent;

  template <typename Kind>
  std::vector<Kind> UploadsOf() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Kind> found;
    for (const worker::Upload& upload : uploads_) {
      if (const auto* kind = std::get_if<Kind>(&upload)) found.push_back(*kind);
    }
    return found;
  }

  mutable std::mutex mutex_;
  worker::PlanLedger ledger_;
  std::optional<worker::SamplingRequest> sampling_;
  std::optional<worker::SnapshotRequest> snapshot_;
  std::optional<worker::GradientRequest> gradients_;
  std::set<int64_t> answered_;  // the modules whose snapshot has been queued for snapshot_
  bool taken_ = true;
  int refused_ = 0;
  std::vector<worker::StepReport> reports_;
  std::vector<worker::Upload> uploads_;
  std::optional<bool> stopped_;
};

// An agent without a controller: a test plays that part through the FakeLine, and a real PlanLedger keeps the
// watermark.
class FakeAgent : public worker::Agent {
 public:
  explicit FakeAgent(FakeLine* line) : line_(line) {}

  void ReportStep(const worker::StepReport& report) override;
  std::optional<worker::SamplingRequest> sampling() const override;
  std::optional<worker::SnapshotRequest> snapshot() const override;
  std::optional<worker::GradientRequest> gradients() const override;
  PlanId watermark() const override;
  std::optional<worker::Plan> plan(PlanId id) const override;
  bool Offer(worker::Upload upload) override;
  worker::AgentCounters counters() const override;
  void Stop(bool finished) override;

 private:
  FakeLine* const line_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_FAKE_AGENT_H_
