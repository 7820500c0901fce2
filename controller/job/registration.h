#ifndef EGERIA_CONTROLLER_JOB_REGISTRATION_H_
#define EGERIA_CONTROLLER_JOB_REGISTRATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// No training has as many optimizer steps; sums of such numbers do not overflow.
inline constexpr int64_t kMaxSteps = int64_t{1} << 50;
inline bool CanBeStep(int64_t step) { return step >= 0 && step <= kMaxSteps; }

// Bounds on a registration.
struct RegistrationLimits {
  int max_world_size = 65'536;
  int max_modules = 512;
  size_t max_name_length = 256;
  int max_planned_rates = 1'024;
  int64_t max_generation = int64_t{1} << 50;
  int64_t max_generation_leap = int64_t{1} << 32;  // beyond the newest one
  int64_t max_parameters = int64_t{1} << 50;       // in one module, in numbers and in bytes
  int max_policy_entries = 4'096;                  // in a list of a policy's constants
  size_t max_bytes = size_t{1} << 20;              // for a registration as it is kept, without its graphs
  size_t max_graph_bytes = size_t{8} << 20;        // for a job
  size_t max_all_graph_bytes = size_t{512} << 20;  // for all jobs together
};

// Checks the form of a registration; the policy and the graphs are checked elsewhere. Errors: INVALID_ARGUMENT
// [BAD_JOB_ID], [BAD_REGISTRATION] naming the field.
absl::Status ValidateRegistration(const v1::RegisterJobRequest& request, const RegistrationLimits& limits);

// OK if the two describe the same job: the same names and sizes of modules, and the same world size, unless the job has
// `restarted` in between. Errors: ALREADY_EXISTS [JOB_CONFLICT] naming the difference.
absl::Status CompareRegistrations(const v1::RegisterJobRequest& known, const v1::RegisterJobRequest& request,
                                  bool restarted);

// `known` with those fields of `now` that a restarted training may change: policy, total_steps, planned_learning_rates,
// budget and world_size, where it is given.
v1::RegisterJobRequest WithSettingsOf(v1::RegisterJobRequest known, const v1::RegisterJobRequest& now);

// A number that differs where any module's graph or the place of its reference differs. It is the same for the same
// graphs in every process.
uint64_t GraphFingerprint(const v1::RegisterJobRequest& request);

// Returns the newest plan that the worker has applied or received.
int64_t NewestPlanOf(const v1::RegisterJobRequest& request);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_REGISTRATION_H_
