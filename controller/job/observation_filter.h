#ifndef EGERIA_CONTROLLER_JOB_OBSERVATION_FILTER_H_
#define EGERIA_CONTROLLER_JOB_OBSERVATION_FILTER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/policy/followed_rate.h"
#include "controller/job/job_state.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// Bounds on a heartbeat.
constexpr int kMaxLossesPerHeartbeat = 65'536;
constexpr int kMaxLearningRatesPerHeartbeat = 4'096;

// Checks the form of a heartbeat. Errors: RESOURCE_EXHAUSTED [HEARTBEAT_TOO_LARGE]; INVALID_ARGUMENT [BAD_MESSAGE] a
// negative step, plan or prefix, losses of steps that are not done yet.
absl::Status ValidateHeartbeat(const v1::Heartbeat& heartbeat, int modules);

// Decides which parts of rank 0's heartbeats are worth a record in the journal.
// - Losses are recorded while the policy wants them, each step once, and only finite ones. Whether the newest one is
//   finite is recorded when that changes, whatever the policy wants.
// - The learning rate is recorded when it has moved by 1 % since its last record, or has come to rest at another value.
//   So no drop is missed, however slowly it comes.
// - The number of modules that do not change is recorded when it changes.
// - The step that training has reached is recorded about a thousand times in all, if the policy acts at given steps.
// - If the policy awaits a step, that step is recorded once training has reached it.
// - The account is recorded about fifty times in all, where the policy wants it and its decisions take effect.
//
// Pure; thread-compatible.
class ObservationFilter {
 public:
  // Forgets the heartbeats of an earlier generation.
  void Reset();

  // Returns the observations of this heartbeat to record, in the order of their steps, none before state.last_step().
  std::vector<v1::Observation> Take(const v1::Heartbeat& heartbeat, const JobState& state);

  // The worker can forget losses up to this step, since they are recorded or useless.
  int64_t LossWatermark(const JobState& state) const;

  // The newest learning rate that a heartbeat told, for readings.
  std::optional<double> learning_rate() const { return learning_rate_; }

 private:
  // The rate that policies follow. It is empty if the heartbeat has none or it is not finite.
  std::optional<double> ScheduledRate(const v1::Heartbeat& heartbeat);
  // Says whether the newest loss is a finite number, with what the heartbeat tells.
  bool LossIsFinite(const v1::Heartbeat& heartbeat, const JobState& state);
  bool LearningRateIsNews(double rate, const JobState& state) const;

  policy::FollowedRate followed_rate_;
  std::optional<double> learning_rate_;
  int64_t last_loss_step_ = -1;    // the newest loss that was looked at, recorded or not
  int64_t newest_loss_step_ = -1;  // the newest loss that came, whether the policy wants losses or not
  int64_t last_heartbeat_step_ = -1;
  int64_t last_account_step_ = -1;  // the newest recorded one
  int last_account_prefix_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_OBSERVATION_FILTER_H_
