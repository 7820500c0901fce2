#ifndef EGERIA_WORKER_TRAINER_SCHEDULE_H_
#define EGERIA_WORKER_TRAINER_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::trainer {

enum class ScheduleKind { kConstant, kStep, kCosine };

struct LearningRateOptions {
  ScheduleKind kind = ScheduleKind::kStep;
  double base = 0.1;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;                      // the rate rises linearly from base / warmup_steps
  std::vector<double> milestones = {0.5, 0.75};  // shares of the total at which kStep lets it fall
  double gamma = 0.1;                            // the factor by which it falls there
};

// Knows "constant", "step" and "cosine". Errors: INVALID_ARGUMENT [BAD_SCHEDULE].
absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name);

// Returns the rate in force during step `step` (from 0), a function of the step alone. kCosine falls from base at the
// end of the warm-up to 0 at the total.
double LearningRate(const LearningRateOptions& options, int64_t step);

// Returns the rates at evenly spread steps of the whole training, the first and the last included: at most
// worker::kMaxPlannedRates.
std::vector<double> PlannedRates(const LearningRateOptions& options);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_SCHEDULE_H_
