#include "common/policy/rules/late_clock.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr double kMaxMeanRateToCome = 0.5;

}  // namespace

LateClock::LateClock(double lr_area_left, const JobShape& shape)
    : lr_area_left_(lr_area_left), total_steps_(shape.total_steps), area_(shape) {
  EGERIA_CHECK(total_steps_ > 0);
}

double LateClock::StartOf(double start) const {
  const std::optional<int64_t> by_area = area_.StepWith(lr_area_left_);
  return by_area ? std::max(start, static_cast<double>(*by_area) / static_cast<double>(total_steps_)) : start;
}

std::optional<std::string> LateClock::TooMuchLeft(int64_t step, double given_up) const {
  const std::optional<double> left = area_.After(step);
  if (!left) return std::nullopt;
  const double rest = lr_area_left_ - given_up;
  if (*left > rest * (1 + 1e-9)) {
    return absl::StrFormat(
        "%.3g %% of the area under the learning rates is still to come, over %g %%, and freezing would cost accuracy",
        100 * *left, 100 * rest);
  }
  const double mean = MeanRateToCome(step);
  if (mean <= kMaxMeanRateToCome) return std::nullopt;
  return absl::StrFormat(
      "the learning rates to come are on average %.2g times those of the whole training: the modules learn until the "
      "end",
      mean);
}

double LateClock::MeanRateToCome(int64_t step) const {
  const int64_t steps_left = total_steps_ - step;
  if (steps_left <= 0) return 0;
  return Left(step) * static_cast<double>(total_steps_) / static_cast<double>(steps_left);
}

}  // namespace egeria::policy
