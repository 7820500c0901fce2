#ifndef EGERIA_COMMON_POLICY_REMAINING_AREA_H_
#define EGERIA_COMMON_POLICY_REMAINING_AREA_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy_config.h"

namespace egeria::policy {

// How much of the area under the learning rates of a training is still to come: that is what is left to learn with.
//
// Where the rates are planned, the area after a step over the whole, both linear between the points of the plan. Where
// they are not, a bound for schedules that do not rise again: what is past as it was observed, and the present rate
// until the end. Thread-compatible.
class RemainingArea {
 public:
  // By its planned_learning_rates; such without an area (HaveArea) are none. By its mean_rate_before otherwise.
  explicit RemainingArea(const JobShape& shape);

  // Takes in the rate in force at a step. Where nothing is known of those before the first one, it is taken to have
  // been the same.
  void Observe(int64_t step, double rate);

  // Part of the whole area that lies behind `step`, 0..1. Empty where the total is unknown, or nothing is planned and
  // no rate has been observed.
  std::optional<double> After(int64_t step) const;

  // The first step with at most that part still to come. Empty without a plan.
  std::optional<int64_t> StepWith(double left) const;

 private:
  const std::vector<double> planned_;  // empty: nothing is
  const double pieces_;                // between its points
  const double whole_;                 // area, of points one apart
  const int64_t total_steps_;
  std::optional<int64_t> observed_until_;
  double rate_ = 0;  // newest
  double past_ = 0;  // area until observed_until_
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_REMAINING_AREA_H_
