#ifndef EGERIA_CONTROLLER_JOB_STANDING_REQUESTS_H_
#define EGERIA_CONTROLLER_JOB_STANDING_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/policy/policy.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// The controller's wishes for one job's sampling rank: probes of the frontmost active module, and snapshots for its
// reference. They are state, not events: Update() says what the policy wants now, and the requests follow from it.
// Versions rise with the clock, so that they also rise over a restart of the controller. Otherwise a worker would take
// a request for one that it has answered.
//
// - A new subject (another module, interval or batch, a fresh history, a new generation) gets new versions. A snapshot
// is asked for first, and samples once it is there, so that none is sent in vain.
// - After refresh_readings readings a new snapshot is asked for; samples go on meanwhile.
// - A snapshot that is refused, or has not come after kSnapshotPatience, is asked for again, one that is refused time
// and again less and less often.
//
// Pure; thread-compatible.
class StandingRequests {
 public:
  static constexpr absl::Duration kSnapshotPatience = absl::Minutes(2);
  static constexpr absl::Duration kSnapshotRetry = absl::Seconds(5);  // doubles with each refusal in a row
  static constexpr absl::Duration kLongestSnapshotRetry = absl::Minutes(5);

  // A series of readings has one subject. Readings of different subjects must not be mixed.
  struct Subject {
    policy::Monitoring monitoring;
    int first_module = 0;
    int64_t epoch = 0;  // JobState::epoch()
    int64_t generation = 0;
    int64_t graphs = 0;  // rises when the reference engine was given other graphs
    bool local = false;  // the sampling rank evaluates the reference itself; first_module is the module
  };

  // The methods that change the requests return true if they did.

  // Sets what is wanted now, or that nothing is.
  bool Update(const std::optional<Subject>& subject, absl::Time now);

  // Asks again for a snapshot that is overdue.
  bool Tick(absl::Time now);

  // The sampling rank is, or may be, another process now: every upload under way is lost, and a local reference belongs
  // to the former process.
  bool SamplerChanged(absl::Time now);

  // The requests that go into a directive; empty where nothing is wanted.
  std::optional<v1::SamplingRequest> sampling() const;
  std::optional<v1::SnapshotRequest> snapshot() const;

  // OK if an upload with this header is wanted now; a reading counts as the sample that it stands for. Errors:
  // FAILED_PRECONDITION [STALE_REQUEST], for a sample also when it is not newer than the reference or an earlier
  // sample.
  absl::Status CheckSample(const v1::SampleHeader& header) const;
  absl::Status CheckSnapshot(const v1::SnapshotHeader& header) const;

  // The reference engine took or refused the upload.
  void SampleTaken(const v1::SampleHeader& header);
  bool SnapshotTaken(const v1::SnapshotHeader& header, absl::Time now);
  bool SnapshotRefused(absl::Time now);
  // The engine says that it has no reference.
  bool ReferenceLost(absl::Time now);

  // Whether a reading of a sample of this version still counts.
  bool IsCurrent(int module, int64_t request_version) const;
  // A reading has been counted.
  bool ReadingTaken(absl::Time now);

  bool reference_ready() const { return reference_ready_; }

 private:
  int64_t NextVersion(absl::Time now);
  void AskForSnapshot(absl::Time now);

  std::optional<Subject> subject_;
  int64_t last_version_ = 0;
  int64_t sampling_version_ = 0;
  int64_t last_sample_step_ = -1;

  int64_t snapshot_version_ = 0;  // the newest request's
  bool snapshot_wanted_ = false;
  absl::Time snapshot_due_;  // ask again after this
  absl::Duration snapshot_retry_ = kSnapshotRetry;
  bool snapshot_refused_ = false;    // nothing is asked for until snapshot_due_
  std::set<int> snapshot_received_;  // modules of snapshot_version_

  bool reference_ready_ = false;
  int64_t reference_step_ = -1;
  int readings_since_snapshot_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_STANDING_REQUESTS_H_
