#ifndef EGERIA_COMMON_POLICY_POLICY_CONFIG_H_
#define EGERIA_COMMON_POLICY_POLICY_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/policy/policy.h"

// These structs hold the constants of each policy, at their defaults. The table in policy_config.cc says what each is,
// and its range. One that is 0 here although 0 is outside its range is worked out from the job by Resolve().
namespace egeria::policy {

struct PlasticityConfig {
  int interval_steps = 0;  // n
  int window = 10;         // W
  double tolerance = 0.2;  // T
  int batch_size = 32;     // b
  bool signed_slope = false;
  bool bootstrap = true;
  double learning_rate_drop = 10;
  double learning_rate_rise = 0;
  std::vector<int64_t> unfreeze_steps;
};

// This is the rule of `plasticity` on another metric of the activations, plasticity::ActivationMetric::kActivationNorm.
struct ActnormConfig : PlasticityConfig {};

// This struct holds the constants that `auto` and `snr` have in common: how often to check, and which gradients are
// noise.
struct ReadingsConfig {
  double every = 0.025;
  double threshold = 0.05;
  double late_threshold = 0.03;
  int interval_steps = 0;
  int readings = 100;
  int min_readings = 16;
  double unfreeze_rise = 1.1;
};

struct AutoConfig : ReadingsConfig {
  double start = 0.82;
  double lr_area_left = 0.01;
  double early_share = 0.25;
  int max_modules = 512;
};

struct SnrConfig : ReadingsConfig {
  double start = 0.4;
  int max_modules = 2;
};

struct StagedConfig {
  double begin = 0.8;
  double end = 0.9;
  int stages = 3;
  int deepest_prefix = 0;
  double share = 0;
  bool area = false;
  bool veto = false;
  double threshold = 0.05;
  double every = 0.025;
  int interval_steps = 0;
};

struct FinetuneConfig {
  double budget = 0.25;
  int stages = 3;
  int frozen_prefix = 0;
};

struct GradnormConfig {
  double percentile = 50;
  int interval_steps = 0;
  double every = 0.05;
  int check_steps = 0;
};

struct ScheduleConfig {
  struct Entry {
    double fraction = 0;
    int frozen_prefix = 0;
  };
  std::vector<Entry> entries;
};

struct NoneConfig {};

using PolicyConfig = std::variant<PlasticityConfig, ActnormConfig, AutoConfig, StagedConfig, FinetuneConfig,
                                  GradnormConfig, ScheduleConfig, NoneConfig, SnrConfig>;

// Return the policy's name in egeria.v1.PolicyConfig, and the names of all policies.
const char* PolicyName(const PolicyConfig& config);
std::vector<std::string> PolicyNames();

// Returns the constants of the paper's rule where the policy is that rule, on whichever metric; null elsewhere.
const PlasticityConfig* RuleOf(const PolicyConfig& config);

// Returns the config with every default filled in, its constants checked against their ranges and the job. Where the
// total of steps is unknown, `auto` becomes `snr`, with the constants that both have.
// Errors: INVALID_ARGUMENT [BAD_POLICY] naming the constant and its range.
absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape);

// Returns the policy that `config` describes, held to the budget where the shape has one. Where the total is known, a
// freeze that would cost more than it saves is left out, and a policy that decides by what it measures is switched off
// when it does not pay. It has the same errors as Resolve().
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape);

// Each makes a policy of a resolved config, for a shape that Resolve() takes. It is in the policy's own source.
std::unique_ptr<Policy> NewPolicy(const PlasticityConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const ActnormConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const AutoConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const StagedConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const FinetuneConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const GradnormConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const ScheduleConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const NoneConfig& config, const JobShape& shape);
std::unique_ptr<Policy> NewPolicy(const SnrConfig& config, const JobShape& shape);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_POLICY_CONFIG_H_
