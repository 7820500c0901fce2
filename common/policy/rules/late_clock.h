#ifndef EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_
#define EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"

namespace egeria::policy {

// This rule says when all may freeze. At most a given part of the area under the learning rates may still be to come,
// since that is left to learn with. The rates to come must also be low, on average at most half of those of the whole
// training. At a constant rate little is left at the very end, too, but what is frozen then would have learned like the
// rest.
//
// Where the rates are planned, the part to come is the area after a step over the whole, both linear between the points
// of the plan. Where they are not, it is a bound for schedules that do not rise again, with the past as it was observed
// and the present rate until the end. Requires a known total of steps. Thread-compatible.
class LateClock {
 public:
  // The rule goes by the shape's planned_learning_rates. Rates without an area (HaveArea) count as no plan, and the
  // shape's mean_rate_before then stands for the rates before the job.
  LateClock(double lr_area_left, const JobShape& shape);

  // Says whether the rule goes by planned rates.
  bool is_planned() const { return !planned_.empty(); }

  // Returns the part of the steps from which on this rule lets freeze, but not before `start`. Without planned rates
  // that is `start`, and TooMuchLeft() decides at each check.
  double StartOf(double start) const;

  // Takes in the rate in force at a step. The rates before the first one are taken to have been the same, where nothing
  // is known of them.
  void ObserveRate(int64_t step, double rate);

  // Says why too much is still to come at `step` for all to freeze, where `given_up` of the area that may be lost is
  // spent already; empty where this rule has nothing against it.
  std::optional<std::string> TooMuchLeft(int64_t step, double given_up) const;

  // Returns the part of the whole area that comes after `step`, 0..1. It is empty where nothing is planned and no rate
  // has been observed.
  std::optional<double> After(int64_t step) const;
  // Returns the same, and all of it where it is unknown.
  double Left(int64_t step) const { return After(step).value_or(1); }
  // Returns the mean of the rates after `step` over the whole training's; 0 past the end.
  double MeanRateToCome(int64_t step) const;

 private:
  const double lr_area_left_;
  const int64_t total_steps_;
  const std::vector<double> planned_;  // empty: nothing is
  const double pieces_;                // between the points of the plan
  const double whole_;                 // area, with points one apart
  std::optional<int64_t> observed_until_;
  double rate_ = 0;  // newest
  double past_ = 0;  // area until observed_until_
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_LATE_CLOCK_H_
