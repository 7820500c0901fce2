#ifndef EGERIA_COMMON_POLICY_RULES_PROGRESS_SHARES_H_
#define EGERIA_COMMON_POLICY_RULES_PROGRESS_SHARES_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "common/policy/policy.h"

namespace egeria::policy {

// ProgressShares tells how much of a training's progress its layer modules make. With g the gradient of a step's batch
// and P what the optimizer multiplies it with, a step lowers the loss, to first order, by the sum over the modules of
//
//   p_m = E g_m' P_m E g_m
//
// of which GradientReading::progress is an unbiased estimate. The share of the first of the modules that are told of is
// the sum of their p over the readings, divided by the sum of all. Its interval (two-sided 90 %) is the one of a ratio
// of sums, as in snr.h. Thread-compatible.
class ProgressShares {
 public:
  struct Share {
    double value = 0;
    double lower = 0;
    double upper = 0;
  };

  // Keeps the last `max_readings` >= 2; an estimate takes `min_readings` >= 2.
  ProgressShares(int min_readings, int max_readings);

  // Takes in a reading. A reading in one part says nothing, nor does one without progress, since nobody knows its
  // optimizer's P, or with numbers that are not finite. One of other modules than those before makes it forget them.
  void Add(const GradientReading& reading);
  void Forget() { readings_.clear(); }

  // The first module that readings tell of, and how many readings there are.
  int first_module() const { return first_module_; }
  int readings() const { return static_cast<int>(readings_.size()); }

  // Returns the share of modules first_module()..end-1 in those and all that follow. Empty with too few readings, or
  // while the progress of all of them together is not clearly over 0 (by its own 90 % interval): nothing can be a share
  // of it then.
  std::optional<Share> Before(int end) const;

 private:
  const int min_readings_;
  const size_t max_readings_;
  int first_module_ = 0;
  std::deque<std::vector<double>> readings_;  // each p, from first_module_ on
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_PROGRESS_SHARES_H_
