#ifndef EGERIA_WORKER_PLANNING_LEARNING_RATES_H_
#define EGERIA_WORKER_PLANNING_LEARNING_RATES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/policy/followed_rate.h"

namespace egeria::worker {

// Keeps what the controller is told of a training's learning rates besides the rates themselves: their mean so far, and
// how many of the first layer modules they leave alone. A module whose rate is 0 is trained for nothing, so that the
// policy `auto` freezes it at once.
//
// Thread-compatible.
class LearningRates {
 public:
  // For each layer module, the number of the parameter group of each of its parameters that is in a group at all.
  using ModuleGroups = std::vector<std::vector<int>>;

  // `sum` is the sum() that a checkpoint holds. It is empty where the checkpoint does not say, and 0 at the start.
  explicit LearningRates(std::optional<double> sum = 0) : sum_(sum) {}

  // The optimizers have stepped, with these rates of all parameter groups.
  void EndStep(absl::Span<const double> rates);

  // Returns the sum over all steps so far of the rate that policies follow. It is empty where nobody knows it.
  std::optional<double> sum() const { return sum_; }
  // Returns the mean over all steps so far, which are so many; 0 where nobody knows it.
  double MeanOver(int64_t steps) const;

  // Returns how many of the first layer modules no optimizer changes, because their learning rates are 0. The last
  // module never counts, as it never freezes. The count ends with the last module that is in a group of rate 0: modules
  // that are in no optimizer are their owner's business. Where no rate is over 0, as at the first step of a warm-up,
  // the count is the one before.
  //
  // Args:
  //   rates: the present ones, of all parameter groups.
  //   groups: is called where the modules have to be counted anew.
  int ZeroLrPrefix(absl::Span<const double> rates, const std::function<ModuleGroups()>& groups);
  // The layer modules are others from now on.
  void ForgetModules();

 private:
  std::optional<double> sum_;
  policy::FollowedRate followed_;
  std::vector<bool> zeros_;  // whether each group's rate was 0 when the modules were last counted
  int zero_lr_prefix_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_PLANNING_LEARNING_RATES_H_
