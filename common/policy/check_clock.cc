#include "common/policy/check_clock.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kLowRate = 0.01;  // of the peak
constexpr double kSlack = 1e-9;
constexpr double kMinStart = 0.01;  // keeps the period of an unknown total bounded

}  // namespace

CheckClock::CheckClock(double start, double every, int most_backoff, int64_t total_steps)
    : start_fraction_(start), every_(every), most_backoff_(most_backoff), unknown_total_(total_steps == 0) {
  EGERIA_CHECK(every > 0 && start >= 0 && most_backoff >= 1 && total_steps >= 0);
  if (unknown_total_) return;
  start_ = next_ = StepAtFraction(start, total_steps);
  period_ = StepsOfPart(every, static_cast<double>(total_steps));
}

void CheckClock::ObserveRate(int64_t step, double rate) {
  if (!unknown_total_) return;
  peak_ = std::max(peak_, rate);
  rate_is_high_ = rate > kLowRate * peak_ * (1 + kSlack);
  if (rate_is_high_ || start_ || peak_ == 0) return;
  start_ = next_ = step;
  period_ = StepsOfPart(every_ / std::max(start_fraction_, kMinStart), static_cast<double>(step));
}

void CheckClock::MoveOn(int64_t step, int64_t periods) {
  if (!start_) return;
  if (step < *start_) {
    next_ = start_;
    return;
  }
  const int64_t passed = (step - *start_) / period_;
  next_ = *start_ + (passed + periods) * period_;
}

void CheckClock::Passed(int64_t step) {
  backoff_ = 1;
  MoveOn(step, 1);
}

void CheckClock::Refused(int64_t step) {
  backoff_ = std::min(most_backoff_, 2 * backoff_);
  MoveOn(step, backoff_);
}

void CheckClock::StartOver(int64_t step) {
  backoff_ = 1;
  const std::optional<int64_t> before = next_;
  MoveOn(step, 1);
  if (before) next_ = std::min(*before, *next_);
}

void CheckClock::GoBack(int64_t step) {
  backoff_ = 1;
  MoveOn(step, 1);
}

}  // namespace egeria::policy
