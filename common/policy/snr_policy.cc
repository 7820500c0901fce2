#include "common/policy/snr_policy.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace egeria::policy {
namespace {

constexpr const char* kOnePart =
    "[ONE_PART] the gradients of a step come as one, so that their noise cannot be told: use two ranks or more, or "
    "several backward passes a step, or a model whose parts the worker can replay";

}  // namespace

std::optional<Decision> SnrPolicy::Check() {
  // A check that is due waits for readings.
  if (!clock().IsDue(step()) || AllFrozen() || IsOver() || !gate().HasEstimate(frozen_prefix())) return std::nullopt;
  clock().MoveOn(step());
  const int front = frozen_prefix();
  for (int prefix = std::min(front + max_modules_, shape().modules - 1); prefix > front; --prefix) {
    if (Refusal(prefix)) continue;
    const std::string snr = gate().Describe(prefix, zero_lr_prefix());
    return Freeze(prefix, snr.empty()
                              ? absl::StrFormat("all gradients of modules %d to %d are exactly 0", front, prefix - 1)
                              : absl::StrFormat("modules 0 to %d: gradient SNR %s at the job's batch is mostly noise",
                                                prefix - 1, snr));
  }
  return std::nullopt;
}

std::optional<std::string> SnrPolicy::Refusal(int prefix) const {
  return gate().Refusal(frozen_prefix(), prefix, zero_lr_prefix());
}

std::optional<std::string> SnrPolicy::Objection(int prefix) const {
  if (one_part() && prefix > std::max(frozen_prefix(), zero_lr_prefix())) return kOnePart;
  return Arbiter::Objection(prefix);
}

std::string SnrPolicy::blocked() const {
  if (AllFrozen()) return "";
  if (one_part()) return kOnePart;
  const std::optional<int64_t> next = clock().next();
  if (!next || step() < *next + *clock().period() || ToldForCheck()) return "";
  return absl::StrCat("[NO_GRADIENTS] a check is due since step ", *next,
                      ", but the workers tell of no gradients; see their logs");
}

}  // namespace egeria::policy
