#ifndef EGERIA_CONTROLLER_POLICY_POLICY_CONFIG_H_
#define EGERIA_CONTROLLER_POLICY_POLICY_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/policy/policy.h"

namespace egeria::policy {

// Constants of the paper's rule; docs/rule.md has the equations.
struct PlasticityConfig {
  int interval_steps = 0;           // n; 0: from the guideline where the total is known, else 50
  int window = 10;                  // W, at least 3
  double tolerance = 0.2;           // T, as a share of the largest |slope| among the first three
  int batch_size = 32;              // b, at least 2
  bool signed_slope = false;        // the paper's listing as printed
  bool bootstrap = true;            // no freezing before the loss has settled
  double learning_rate_drop = 10;   // unfreeze all at lr <= lr(first freeze) / this; 0: never
  double learning_rate_rise = 0;    // unfreeze all at lr >= min(lr since the first freeze) * this; 0: never
  std::vector<int64_t> unfreeze_steps;
};

struct ScheduleConfig {
  struct Entry {
    double fraction = 0;  // of the total steps, 0..1, rising
    int frozen_prefix = 0;
  };
  std::vector<Entry> entries;
};

struct NoneConfig {};

using PolicyConfig = std::variant<PlasticityConfig, ScheduleConfig, NoneConfig>;

// "plasticity", "schedule" or "none".
const char* PolicyName(const PolicyConfig& config);

// What a policy must know of its job.
struct JobShape {
  int modules = 0;           // at least 2
  int64_t total_steps = 0;   // 0: unknown
  bool losses_reported = true;  // false: no observation will ever have a loss
  int64_t first_step = 0;       // optimizer steps done when the job began, e.g. from a checkpoint
};

// The config with every default filled in: n = max(1, total steps / (2 W) / modules / 1.75) where the total
// is known. Errors: INVALID_ARGUMENT [BAD_POLICY] naming the constant and its range.
absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape);

// The policy that `config`, which must have been resolved, describes. Same errors as Resolve().
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape);

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_POLICY_CONFIG_H_
