#include "common/policy/rules/check_clock.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kLowRate = 0.01;   // share of the peak
constexpr double kMinStart = 0.01;  // bounds the period of an unknown total

}  // namespace

CheckClock::CheckClock(double start, double every, int64_t total_steps)
    : start_fraction_(start), every_(every), total_steps_(total_steps), unknown_total_(total_steps == 0) {
  EGERIA_CHECK(every > 0 && start >= 0 && total_steps >= 0);
  if (unknown_total_) return;
  start_ = next_ = StepAtFraction(start, total_steps);
  period_ = StepsOfPart(every, static_cast<double>(total_steps));
}

void CheckClock::ObserveRate(int64_t step, double rate) {
  rate_ = rate;
  if (!unknown_total_) return;
  peak_ = std::max(peak_, rate);
  rate_is_high_ = rate > kLowRate * peak_ * (1 + kRateSlack);
  if (rate_is_high_ || start_ || peak_ == 0) return;
  start_ = next_ = step;
  period_ = StepsOfPart(every_ / std::max(start_fraction_, kMinStart), static_cast<double>(step));
}

std::optional<std::string> CheckClock::TooEarly(int64_t step) const {
  if (!unknown_total_) {
    if (step >= *start_) return std::nullopt;
    return absl::StrFormat("step %d of %d is before %g %% of the training, where freezing costs accuracy", step,
                           total_steps_, 100 * static_cast<double>(*start_) / static_cast<double>(total_steps_));
  }
  if (!Waiting()) return std::nullopt;
  return absl::StrFormat(
      "the learning rate %.4g has not fallen to a hundredth of its peak of %.4g, and how long the training lasts is "
      "unknown",
      rate_, peak_);
}

void CheckClock::MoveOnBy(int64_t step, int64_t periods) {
  if (!start_) return;
  if (step < *start_) {
    next_ = start_;
    return;
  }
  const int64_t passed = (step - *start_) / period_;
  next_ = *start_ + (passed + periods) * period_;
}

void CheckClock::StartOver(int64_t step) {
  const std::optional<int64_t> before = next_;
  MoveOn(step);
  if (before) next_ = std::min(*before, *next_);
}

}  // namespace egeria::policy
