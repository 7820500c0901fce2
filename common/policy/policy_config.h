#ifndef EGERIA_COMMON_POLICY_POLICY_CONFIG_H_
#define EGERIA_COMMON_POLICY_POLICY_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/policy/policy.h"

namespace egeria::policy {

// Constants of the paper's rule; docs/rule.md has the equations.
struct PlasticityConfig {
  int interval_steps = 0;          // n; 0: from the guideline where the total is known, else 50
  int window = 10;                 // W, at least 3
  double tolerance = 0.2;          // T, as a share of the largest |slope| among the first three
  int batch_size = 32;             // b, at least 2
  bool signed_slope = false;       // the paper's listing as printed
  bool bootstrap = true;           // no freezing before the loss has settled
  double learning_rate_drop = 10;  // unfreeze all at lr <= lr(first freeze) / this; 0: never
  double learning_rate_rise = 0;   // unfreeze all at lr >= min(lr since the first freeze) * this; 0: never
  std::vector<int64_t> unfreeze_steps;
};

// The same rule on another metric of the activations, plasticity::ActivationMetric::kActivationNorm.
struct ActnormConfig : PlasticityConfig {};

struct ScheduleConfig {
  struct Entry {
    double fraction = 0;  // of the total steps, 0..1, rising
    int frozen_prefix = 0;
  };
  std::vector<Entry> entries;
};

struct NoneConfig {};

// auto_policy.h. Parts are of the total steps.
struct AutoConfig {
  std::optional<bool> signal_led;   // empty: where the total is unknown
  std::optional<double> start;      // empty: .82; led by the signal .4
  std::optional<double> area_left;  // of all under the learning rates; empty: .01; led by the signal 1
  std::optional<double>
      early_share;  // of a prefix's share of the time; empty: .25; led by the signal 0: nothing is early
  double every = 0.025;
  int most_modules = 0;  // 0: all; led by the signal 2
  double threshold = 0.05;
  double late_threshold = 0.03;
  int interval_steps = 0;  // 0: every / 50, at least 2, with one rank 20; where the total is unknown it stays 0
  int readings = 100;
  int least_readings = 16;
  double reprobe_every = 0.05;  // 0: never
  double unfreeze_rise = 1.1;   // 0: never
  int most_backoff = 2;
  std::optional<bool> second_opinion;  // empty: unless the training is short (under 5,000 steps)
  int batch_size = 32;
};

// staged_policy.h. Parts are of the total steps, or of the area under the learning rates.
struct StagedConfig {
  double begin = 0.8;
  double end = 0.9;
  int stages = 3;
  int deepest_prefix = 0;  // 0: all but the last module, or as `share` says
  double share = 0;        // 0: none was given
  bool area = false;
  bool veto = false;
  double threshold = 0.05;
  double every = 0.025;    // of the total steps, always
  int interval_steps = 0;  // 0: as AutoConfig
};

// finetune_policy.h.
struct FinetuneConfig {
  double budget = 0.3;
  int frozen_prefix = 0;  // 0: as the budget says
};

// gradnorm_policy.h.
struct GradnormConfig {
  double percentile = 50;
  int interval_steps = 0;  // 0: a tenth of check_steps
  double every = 0.05;
  int check_steps = 0;  // 0: `every` of the total, 500 where that is unknown
};

using PolicyConfig = std::variant<PlasticityConfig, ScheduleConfig, NoneConfig, AutoConfig, StagedConfig,
                                  FinetuneConfig, GradnormConfig, ActnormConfig>;

// Its name in egeria.v1.PolicyConfig, and all such names.
const char* PolicyName(const PolicyConfig& config);
std::vector<std::string> PolicyNames();

// The constants of the paper's rule, where the policy is that rule, on whichever metric; else null.
const PlasticityConfig* RuleOf(const PolicyConfig& config);

// What a policy must know of its job.
struct JobShape {
  int modules = 0;              // at least 2
  int64_t total_steps = 0;      // 0: unknown
  bool losses_reported = true;  // false: no observation will ever have a loss
  int64_t first_step = 0;       // optimizer steps done when the job began, e.g. from a checkpoint
  int ranks = 1;                // data-parallel processes
  // Of each module, or empty where nobody knows: the part of a step's time, with nothing frozen, that freezing it
  // saves once all before it are frozen; and how many parameters it has.
  std::vector<double> step_shares = {};
  std::vector<int64_t> parameter_counts = {};
  // Learning rates at evenly spread steps of the whole training, the first and the last included; empty: unknown.
  std::vector<double> planned_learning_rates = {};
  double budget = 0;            // part of the job's time that is to be saved, and no more; 0: as much as can be
  double saved_before = 0;      // the same, that was saved before `first_step`
  double mean_rate_before = 0;  // mean learning rate of the steps before `first_step`; 0: unknown
  int embedding_prefix = 0;     // the first so many are lookup tables, such as embeddings
};

// The config with every default filled in: n = max(1, total steps / (2 W) / modules / 1.75) where the total
// is known. Errors: INVALID_ARGUMENT [BAD_POLICY] naming the constant and its range.
absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape);

// The policy that `config`, which must have been resolved, describes: held to the budget where the shape has one, and,
// where it decides by what it measures and the total is known, switched off when it does not pay. Same errors as
// Resolve().
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_POLICY_CONFIG_H_
