#ifndef EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_
#define EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_

#include <optional>
#include <vector>

#include "common/policy/rules/proposal.h"

namespace egeria::policy {

// Unfreezes a module, with all behind it, when the learning rate is over a given multiple of the one at which it froze.
// Thread-compatible.
class RateRise {
 public:
  // A factor of 0 switches the rule off.
  RateRise(double factor, int modules);

  // Takes in the rate in force while modules 0..frozen-1 are frozen. The first `exempt` of them never unfreeze by it.
  std::optional<Proposal> Observe(double rate, int frozen, int exempt);

  // The frozen prefix changes from `before` to `prefix` at this rate, which is empty where it is not known yet.
  void OnPrefix(int before, int prefix, std::optional<double> rate);

 private:
  const double factor_;
  std::vector<std::optional<double>> rate_at_freeze_;  // per module; empty where it is active or the rate unknown
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_RATE_RISE_H_
