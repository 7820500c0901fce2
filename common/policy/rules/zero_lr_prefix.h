#ifndef EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_
#define EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_

#include <optional>

#include "common/policy/rules/proposal.h"

namespace egeria::policy {

// Freezes the front modules that nothing changes, since all their learning rates are 0, and unfreezes them when one of
// the rates is 0 no more. It proposes once for each change of their number: what somebody else decides afterwards
// stands. Thread-compatible.
class ZeroLrPrefix {
 public:
  explicit ZeroLrPrefix(int modules) : modules_(modules) {}

  // Takes in how many modules have the rate 0, while `frozen` are frozen.
  std::optional<Proposal> Observe(int zero_lr_prefix, int frozen);
  // Training goes on from an older step, at which other modules may have had a rate.
  void Forget() { prefix_ = 0; }

  int prefix() const { return prefix_; }

 private:
  const int modules_;
  int prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_
