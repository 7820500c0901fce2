#ifndef EGERIA_CONTROLLER_JOB_GRADIENT_REQUESTS_H_
#define EGERIA_CONTROLLER_JOB_GRADIENT_REQUESTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/policy/policy.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// OK if the reading can belong to a job of `modules` layer modules. Errors: INVALID_ARGUMENT [GRADIENTS_NOT_FINITE],
// [BAD_GRADIENTS] naming what is wrong.
absl::Status CheckGradients(const v1::GradientReading& reading, int modules);

// The controller's wish for gradients of one job's sampling rank: state, not events, like StandingRequests for samples.
// Another interval, first module or generation gets a new version. Versions rise with the clock, so that they also rise
// over a restart of the controller. A freeze or unfreeze alone changes nothing: a gradient is a fact of its step
// whatever was decided meanwhile. Pure; thread-compatible.
class GradientRequests {
 public:
  // Sets what is wanted now, or that nothing is. Returns true if the request changed.
  bool Update(const std::optional<policy::GradientMonitoring>& wanted, int64_t generation, absl::Time now);

  // The request that goes into a directive; empty where nothing is wanted.
  std::optional<v1::GradientRequest> request() const;

  // OK if this reading is wanted now. Errors: FAILED_PRECONDITION [STALE_REQUEST] another version or first module, or a
  // step that has been told already.
  absl::Status Check(const v1::GradientReading& reading) const;
  void Taken(const v1::GradientReading& reading) { last_step_ = reading.step(); }

 private:
  std::optional<policy::GradientMonitoring> wanted_;
  int64_t generation_ = -1;
  int64_t version_ = 0;
  int64_t last_step_ = -1;  // the newest that was told in this generation
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_GRADIENT_REQUESTS_H_
