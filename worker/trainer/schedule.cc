#include "worker/trainer/schedule.h"

#include <cmath>
#include <numbers>

#include "common/base/status.h"

namespace egeria::trainer {

absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "step") return ScheduleKind::kStep;
  if (name == "cosine") return ScheduleKind::kCosine;
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SCHEDULE", "'", name,
                    "' is no schedule: use constant, step or cosine");
}

double LearningRate(const LearningRateOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.base * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  switch (options.kind) {
    case ScheduleKind::kConstant: return options.base;
    case ScheduleKind::kStep: {
      double rate = options.base;
      for (double milestone : options.milestones) {
        if (static_cast<double>(step) >= milestone * static_cast<double>(options.total_steps)) {
          rate *= options.gamma;
        }
      }
      return rate;
    }
    case ScheduleKind::kCosine: {
      const double span = static_cast<double>(options.total_steps - options.warmup_steps);
      const double done = span <= 0 ? 1 : static_cast<double>(step - options.warmup_steps) / span;
      return 0.5 * options.base * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
    }
  }
  return options.base;
}

}  // namespace egeria::trainer
