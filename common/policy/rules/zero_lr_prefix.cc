#include "common/policy/rules/zero_lr_prefix.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace egeria::policy {

std::optional<Proposal> ZeroLrPrefix::Observe(int zero_lr_prefix, int frozen) {
  const int before = std::exchange(prefix_, std::clamp(zero_lr_prefix, 0, modules_ - 1));
  if (prefix_ == before) return std::nullopt;
  if (prefix_ > frozen) {
    return Proposal{prefix_,
                    absl::StrFormat("nothing changes modules 0 to %d: their learning rates are 0", prefix_ - 1)};
  }
  if (prefix_ >= std::min(before, frozen)) return std::nullopt;
  return Proposal{prefix_, absl::StrFormat("the learning rate of module %d is not 0 any more", prefix_)};
}

}  // namespace egeria::policy
