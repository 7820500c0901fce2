#ifndef EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_
#define EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/policy/policy.h"

namespace egeria::policy {

// This rule freezes the front modules that nothing changes, since all their learning rates are 0, and unfreezes them
// when one of the rates is 0 no more. It proposes once for each change of their number: a later decision of somebody
// else stands. Thread-compatible.
class ZeroLrPrefix {
 public:
  explicit ZeroLrPrefix(int modules) : modules_(modules) {}

  // Takes in how many modules have the rate 0, while `frozen` are frozen.
  std::optional<Proposal> Observe(int zero_lr_prefix, int frozen) {
    const int before = std::exchange(prefix_, std::clamp(zero_lr_prefix, 0, modules_ - 1));
    if (prefix_ == before) return std::nullopt;
    if (prefix_ > frozen) {
      return Proposal{prefix_,
                      absl::StrFormat("nothing changes modules 0 to %d: their learning rates are 0", prefix_ - 1)};
    }
    if (prefix_ >= std::min(before, frozen)) return std::nullopt;
    return Proposal{prefix_, absl::StrFormat("the learning rate of module %d is not 0 any more", prefix_)};
  }

  // Training goes on from an older step, at which other modules may have had a rate.
  void Forget() { prefix_ = 0; }

  int prefix() const { return prefix_; }

 private:
  const int modules_;
  int prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_ZERO_LR_PREFIX_H_
