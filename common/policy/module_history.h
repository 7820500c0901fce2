#ifndef EGERIA_COMMON_POLICY_MODULE_HISTORY_H_
#define EGERIA_COMMON_POLICY_MODULE_HISTORY_H_

#include "common/plasticity/smoothing.h"
#include "common/policy/policy.h"

namespace egeria::policy {

// The readings of one module since it became frontmost, and the test of whether its plasticity is stationary
// (paper, Algorithm 1). Thread-compatible.
//
// Each reading is smoothed by the mean of the last W; from the second on, the least-squares slope of the last
// W smoothed values is taken. The threshold is the tolerance times the largest |slope| among the first three
// slopes. From the fourth on, a slope under the threshold counts one (|slope|, or the slope itself where
// `signed_slope`), any other restarts the count at 0. A slope of exactly 0 counts whatever the threshold:
// where the first three slopes are 0 nothing could be under it.
class ModuleHistory {
 public:
  ModuleHistory(int window, double tolerance, bool signed_slope);

  // Takes in a finite reading. Returns true when W slopes in a row have counted.
  bool Add(double plasticity);

  const ModuleStatus& status() const { return status_; }

  // Returns the largest |slope| among the first three (so far).
  double initial_slope() const { return initial_slope_; }

 private:
  const int window_;
  const double tolerance_;
  const bool signed_slope_;
  plasticity::Window readings_;
  plasticity::Window smoothed_;
  int initial_slopes_ = 0;
  double initial_slope_ = 0;
  ModuleStatus status_;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_MODULE_HISTORY_H_
