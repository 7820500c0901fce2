#ifndef EGERIA_COMMON_POLICY_SNR_POLICY_H_
#define EGERIA_COMMON_POLICY_SNR_POLICY_H_

#include <optional>
#include <string>

#include "common/policy/arbiter.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// Freezes what surely is noise: a few modules at a time, and only those whose gradients have a signal-to-noise ratio
// surely under the thresholds (SnrGate). Doubt is a reason against a freeze, and so are missing readings. It needs no
// total of steps: CheckClock says when it begins where that is unknown. docs/policies.md has the rule in full.
// Thread-compatible.
class SnrPolicy : public Arbiter {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  SnrPolicy(const SnrConfig& config, const JobShape& shape)
      : Arbiter(config, config.start, shape), max_modules_(config.max_modules) {}

  std::optional<std::string> Objection(int prefix) const override;
  std::string blocked() const override;

 protected:
  std::optional<Decision> Check() override;
  std::optional<std::string> TooEarly() const override { return clock().TooEarly(step()); }
  std::optional<std::string> Refusal(int prefix) const override;

 private:
  const int max_modules_;  // that one check may freeze
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_SNR_POLICY_H_
