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

// Checks the form of a heartbeat.
// Errors: RESOURCE_EXHAUSTED [HEARTBEAT_TOO_LARGE]; INVALID_ARGUMENT [BAD_MESSAGE] a negative step, plan or
// prefix, losses of steps that are not done yet.
absl::Status ValidateHeartbeat(const v1::Heartbeat& heartbeat, int modules);

// Decides what of rank 0's heartbeats is worth a record in the journal:
// - losses while the policy wants them, each step once, none that is not finite;
// - the learning rate when it has moved by 1 % since it was last recorded, or has come to rest anywhere
//   else, so that no drop is missed however slowly it comes;
// - the number of modules that do not change, when it changes;
// - for a policy that acts at given steps, that training has gone on, about a thousand times in all;
// - that training has got to the step that the policy awaits, if it awaits one;
// - the account, where the policy wants it and its decisions take effect, about fifty times in all.
//
// Pure; thread-compatible.
class ObservationFilter {
 public:
  // Forgets what the heartbeats of an earlier generation said.
  void Reset();

  // The observations to record of this heartbeat, in the order of their steps, none before
  // state.last_step().
  std::vector<v1::Observation> Take(const v1::Heartbeat& heartbeat, const JobState& state);

  // Losses up to this step are recorded, or of no use: the worker can forget them.
  int64_t LossWatermark(const JobState& state) const;

  // The newest learning rate that a heartbeat told, for readings.
  std::optional<double> learning_rate() const { return learning_rate_; }

 private:
  // Returns the rate that policies follow. It is empty if nobody tells one, or it is not finite.
  std::optional<double> ScheduledRate(const v1::Heartbeat& heartbeat);
  bool LearningRateIsNews(double rate, const JobState& state) const;

  policy::FollowedRate followed_rate_;
  std::optional<double> learning_rate_;
  int64_t last_loss_step_ = -1;  // looked at, recorded or not
  int64_t last_heartbeat_step_ = -1;
  int64_t last_account_step_ = -1;  // recorded
  int last_account_prefix_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_OBSERVATION_FILTER_H_
