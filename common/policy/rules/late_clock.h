#ifndef EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_
#define EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/policy/policy_config.h"
#include "common/policy/rules/remaining_area.h"

namespace egeria::policy {

// Says when all may freeze: when at most a given part of the area under the learning rates is still to come, and the
// rates to come are low. At a constant rate little is left at the very end, too, but what is frozen then would have
// learned like the rest; so the rates to come must be on average at most half of those of the whole training.
// Requires a known total of steps. Thread-compatible.
class LateClock {
 public:
  LateClock(double lr_area_left, const JobShape& shape);

  // The part of the steps from which on this rule lets freeze, but not before `start`. Without planned rates that is
  // `start`, and TooMuchLeft() decides at each check.
  double StartOf(double start) const;

  void ObserveRate(int64_t step, double rate) { area_.Observe(step, rate); }

  // Why too much is still to come at `step` for all to freeze, where `given_up` of the area that may be lost is spent
  // already; empty where this rule has nothing against it.
  std::optional<std::string> TooMuchLeft(int64_t step, double given_up) const;

  // The part of the area that comes after `step`; all of it where that is unknown.
  double Left(int64_t step) const { return area_.After(step).value_or(1); }
  // Whether Left() is known.
  bool KnowsLeft(int64_t step) const { return area_.After(step).has_value(); }
  // The mean of the rates after `step` over that of the whole training's; 0 past the end.
  double MeanRateToCome(int64_t step) const;

 private:
  const double lr_area_left_;
  const int64_t total_steps_;
  RemainingArea area_;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_
