#ifndef EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_
#define EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/policy/policy.h"

namespace egeria::policy {

// This rule unfreezes a module, with all behind it, when the learning rate is over a given multiple of the one at which
// it froze. Thread-compatible.
class RateRise {
 public:
  // A factor of 0 switches the rule off.
  RateRise(double factor, int modules) : factor_(factor), rate_at_freeze_(static_cast<size_t>(modules)) {}

  // Takes in the rate in force while modules 0..frozen-1 are frozen. The first `exempt` of them never unfreeze by it.
  std::optional<Proposal> Observe(double rate, int frozen, int exempt) {
    for (int module = 0; module < frozen; ++module) {
      std::optional<double>& known = rate_at_freeze_[static_cast<size_t>(module)];
      if (!known) known = rate;
    }
    if (factor_ == 0) return std::nullopt;
    for (int module = exempt; module < frozen; ++module) {
      const double at_freeze = *rate_at_freeze_[static_cast<size_t>(module)];
      if (rate <= at_freeze * factor_ * (1 + kRateSlack)) continue;
      return Proposal{module, absl::StrFormat("learning rate %.4g is over %g times the %.4g at which module %d froze",
                                              rate, factor_, at_freeze, module)};
    }
    return std::nullopt;
  }

  // The frozen prefix changes from `before` to `prefix` at this rate, which is empty where it is not known yet.
  void OnPrefix(int before, int prefix, std::optional<double> rate) {
    for (size_t module = static_cast<size_t>(std::min(before, prefix)); module < rate_at_freeze_.size(); ++module) {
      rate_at_freeze_[module] = static_cast<int>(module) < prefix ? rate : std::nullopt;
    }
  }

 private:
  const double factor_;
  std::vector<std::optional<double>> rate_at_freeze_;  // per module; empty where it is active or the rate unknown
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_
