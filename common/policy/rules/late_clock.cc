#include "common/policy/rules/late_clock.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kMinMeanRateToCome = 0.5;

}  // namespace

LateClock::LateClock(double lr_area_left, const JobShape& shape)
    : lr_area_left_(lr_area_left),
      total_steps_(shape.total_steps),
      planned_(HaveArea(shape.planned_learning_rates) ? shape.planned_learning_rates : std::vector<double>{}),
      pieces_(planned_.empty() ? 0 : static_cast<double>(planned_.size() - 1)),
      whole_(AreaUntil(pieces_, planned_)) {
  EGERIA_CHECK(total_steps_ > 0);
  if (shape.first_step == 0 || !(shape.mean_rate_before > 0)) return;
  observed_until_ = shape.first_step;
  rate_ = shape.mean_rate_before;
  past_ = rate_ * static_cast<double>(shape.first_step);
}

double LateClock::StartOf(double start) const {
  if (planned_.empty()) return start;
  const int64_t by_area = StepAtArea(std::clamp(1 - lr_area_left_, 0.0, 1.0), planned_, total_steps_);
  return std::max(start, static_cast<double>(by_area) / static_cast<double>(total_steps_));
}

void LateClock::ObserveRate(int64_t step, double rate) {
  const int64_t since = observed_until_.value_or(0);
  if (step < since) {  // training goes on from an older step
    past_ *= since > 0 ? static_cast<double>(step) / static_cast<double>(since) : 0;
  } else {
    past_ += (observed_until_ ? rate_ : rate) * static_cast<double>(step - since);
  }
  observed_until_ = step;
  rate_ = rate;
}

std::optional<std::string> LateClock::TooMuchLeft(int64_t step, double given_up) const {
  const std::optional<double> left = After(step);
  if (!left) return std::nullopt;
  const double rest = lr_area_left_ - given_up;
  if (*left > rest * (1 + 1e-9)) {
    return absl::StrFormat(
        "%.3g %% of the area under the learning rates is still to come, over %g %%, and freezing would cost accuracy",
        100 * *left, 100 * rest);
  }
  const double mean = MeanRateToCome(step);
  if (mean <= kMinMeanRateToCome) return std::nullopt;
  return absl::StrFormat(
      "the learning rates to come are on average %.2g times those of the whole training: the modules learn until the "
      "end",
      mean);
}

std::optional<double> LateClock::After(int64_t step) const {
  if (step >= total_steps_) return 0;
  if (!planned_.empty()) {
    const double done = std::max(0.0, static_cast<double>(step) / static_cast<double>(total_steps_));
    return std::max(0.0, 1 - AreaUntil(done * pieces_, planned_) / whole_);
  }
  if (!observed_until_) return std::nullopt;
  const double past = past_ + rate_ * static_cast<double>(std::max<int64_t>(0, step - *observed_until_));
  const double ahead = rate_ * static_cast<double>(total_steps_ - step);
  return past + ahead > 0 ? ahead / (past + ahead) : 0;
}

double LateClock::MeanRateToCome(int64_t step) const {
  const int64_t steps_left = total_steps_ - step;
  if (steps_left <= 0) return 0;
  return Left(step) * static_cast<double>(total_steps_) / static_cast<double>(steps_left);
}

}  // namespace egeria::policy
