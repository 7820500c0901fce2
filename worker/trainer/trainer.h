#ifndef EGERIA_WORKER_TRAINER_TRAINER_H_
#define EGERIA_WORKER_TRAINER_TRAINER_H_

#include "absl/status/statusor.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/options.h"
#include "worker/trainer/summary.h"

namespace egeria::trainer {

// Trains as the options say, on every rank of the launch, and returns what it came to. Prints progress on
// standard error of rank 0.
//
// Errors, INVALID_ARGUMENT or NOT_FOUND where the user can help it (flags, data, checkpoint), each with a name
// and what to do; UNAVAILABLE where another rank is gone; INTERNAL [STEP_FAILED] where torch refuses a step.
absl::StatusOr<RunSummary> Train(const Options& options, const Launch& launch, c10::Device device);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_TRAINER_H_
