#include "worker/trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/status.h"
#include "worker/planning/planned_saving.h"

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

std::vector<double> PlannedRates(const LearningRateOptions& options) {
  const int64_t count = std::min(options.total_steps, worker::kMaxPlannedRates);
  std::vector<double> rates;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = count == 1 ? 0 : i * (options.total_steps - 1) / (count - 1);
    rates.push_back(LearningRate(options, step));
  }
  return rates;
}

}  // namespace egeria::trainer
