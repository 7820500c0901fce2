#ifndef EGERIA_COMMON_POLICY_RULES_REMAINING_AREA_H_
#define EGERIA_COMMON_POLICY_RULES_REMAINING_AREA_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy_config.h"

namespace egeria::policy {

// RemainingArea tells how much of the area under the learning rates of a training is still to come, which is what is
// left to learn with.
//
// Where the rates are planned, it is the area after a step over the whole, both linear between the points of the plan.
// Where they are not, it is a bound for schedules that do not rise again, with the past as it was observed and the
// present rate until the end. Thread-compatible.
class RemainingArea {
 public:
  // Goes by the shape's planned_learning_rates; such without an area (HaveArea) are none, and its mean_rate_before
  // stands for what was before the job then.
  explicit RemainingArea(const JobShape& shape);

  // Takes in the rate in force at a step. Where nothing is known of those before the first one, it is taken to have
  // been the same.
  void Observe(int64_t step, double rate);

  // Returns the part of the whole area that comes after `step`, 0..1. Empty where the total is unknown, or nothing is
  // planned and no rate has been observed.
  std::optional<double> After(int64_t step) const;

  // Returns the first step with at most that part still to come. Empty without a plan.
  std::optional<int64_t> StepWith(double left) const;

 private:
  const std::vector<double> planned_;  // empty: nothing is
  const double pieces_;                // between the points of the plan
  const double whole_;                 // area, with points one apart
  const int64_t total_steps_;
  std::optional<int64_t> observed_until_;
  double rate_ = 0;  // newest
  double past_ = 0;  // area until observed_until_
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_REMAINING_AREA_H_
