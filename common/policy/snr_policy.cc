#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/policy/arbiter.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {
namespace {

constexpr const char* kOnePart =
    "[ONE_PART] the gradients of a step come as one, so that their noise cannot be told: use two ranks or more, or "
    "several backward passes a step, or a model whose parts the worker can replay";

// This policy freezes what surely is noise: a few modules at a time, and only those whose gradients have a
// signal-to-noise ratio surely under the thresholds (SnrGate). Doubt is a reason against a freeze, and so are missing
// readings. It needs no total of steps: CheckClock says when it begins where that is unknown.
// docs/reference/policies.md has the rule in full. Thread-compatible.
class SnrPolicy : public Arbiter {
 public:
  SnrPolicy(const SnrConfig& config, const JobShape& shape)
      : Arbiter(config, config.start, shape), max_modules_(config.max_modules) {}

  std::optional<std::string> Objection(int prefix) const override {
    if (one_part() && prefix > std::max(frozen_prefix(), zero_lr_prefix())) return kOnePart;
    return Arbiter::Objection(prefix);
  }

  std::string blocked() const override {
    if (AllFrozen()) return "";
    if (one_part()) return kOnePart;
    const std::optional<int64_t> next = clock().next();
    if (!next || step() < *next + *clock().period() || ToldForCheck()) return "";
    return absl::StrCat("[NO_GRADIENTS] a check is due since step ", *next,
                        ", but the workers tell of no gradients; see their logs");
  }

 protected:
  std::optional<Decision> Check() override {
    // A check that is due waits for readings.
    if (!clock().IsDue(step()) || AllFrozen() || IsOver() || !gate().HasEstimate(frozen_prefix())) return std::nullopt;
    clock().MoveOn(step());
    const int front = frozen_prefix();
    for (int prefix = std::min(front + max_modules_, modules() - 1); prefix > front; --prefix) {
      if (Refusal(prefix)) continue;
      const std::string snr = gate().Describe(prefix, zero_lr_prefix());
      return Go({prefix, snr.empty()
                             ? absl::StrFormat("all gradients of modules %d to %d are exactly 0", front, prefix - 1)
                             : absl::StrFormat("modules 0 to %d: gradient SNR %s at the job's batch is mostly noise",
                                               prefix - 1, snr)});
    }
    return std::nullopt;
  }

  std::optional<std::string> TooEarly() const override { return clock().TooEarly(step()); }

  std::optional<std::string> Refusal(int prefix) const override {
    return gate().Refusal(frozen_prefix(), prefix, zero_lr_prefix());
  }

 private:
  const int max_modules_;  // that one check may freeze
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const SnrConfig& config, const JobShape& shape) {
  return std::make_unique<SnrPolicy>(config, shape);
}

}  // namespace egeria::policy
