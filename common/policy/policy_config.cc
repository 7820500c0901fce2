#include "common/policy/policy_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/policy/auto_policy.h"
#include "common/policy/budgeted_policy.h"
#include "common/policy/finetune_policy.h"
#include "common/policy/gradnorm_policy.h"
#include "common/policy/paying_policy.h"
#include "common/policy/planned_saving.h"
#include "common/policy/plasticity_policy.h"
#include "common/policy/schedule_policy.h"
#include "common/policy/staged_policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// The bound on n bounds the memory and time of the bootstrapping stage (6n losses), that on W those of a
// module's history, that on b the Gram matrices.
constexpr int kMaxInterval = 100'000;
constexpr int kDefaultInterval = 50;
constexpr int kMinWindow = 3;
constexpr int kMaxWindow = 1000;
constexpr int kMaxBatch = 4096;
constexpr double kMaxFactor = 1e6;
constexpr size_t kMaxEntries = 1024;
constexpr int kMaxReadings = 1000;
constexpr int kMinReadings = 4;  // an interval from fewer would be a guess
constexpr double kMinEvery = 1e-4;
constexpr int kMaxBackoff = 64;
// In a shorter training a reference model takes more time than its opinion is worth.
constexpr int64_t kStepsOfSecondOpinion = 5'000;
constexpr int kMaxStages = 512;
constexpr int kDefaultCheckSteps = 500;
constexpr int kReadingsPerGradnormCheck = 10;

template <typename... Args>
absl::Status BadPolicy(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_POLICY", message...);
}

absl::Status CheckRange(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return BadPolicy(name, " is ", value, ", must be ", low, " to ", high);
}

absl::Status CheckFactor(const char* name, double value) {
  if (value == 0 || (value > 1 && value <= kMaxFactor)) return absl::OkStatus();
  return BadPolicy(name, " is ", value, ", must be over 1 (at most ", kMaxFactor, "), or 0 for never");
}

// n = total steps / (2 W) / modules / 1.75, the paper's guideline: each module gets time for about 2W
// readings, and the modules together finish well before the training does.
int GuidelineInterval(int window, const JobShape& shape) {
  if (shape.total_steps == 0) return kDefaultInterval;
  const double interval = static_cast<double>(shape.total_steps) / (2.0 * window) / shape.modules / 1.75;
  return static_cast<int>(std::clamp(std::floor(interval), 1.0, static_cast<double>(kMaxInterval)));
}

// Config: PlasticityConfig or ActnormConfig.
template <typename Config>
absl::StatusOr<PolicyConfig> ResolveRule(Config config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckRange("window", config.window, kMinWindow, kMaxWindow));
  if (config.interval_steps == 0) config.interval_steps = GuidelineInterval(config.window, shape);
  EGERIA_RETURN_IF_ERROR(CheckRange("interval_steps", config.interval_steps, 1, kMaxInterval));
  if (!(config.tolerance > 0 && config.tolerance <= 1)) {
    return BadPolicy("tolerance is ", config.tolerance, ", must be over 0 and at most 1");
  }
  EGERIA_RETURN_IF_ERROR(CheckRange("batch_size", config.batch_size, 2, kMaxBatch));
  EGERIA_RETURN_IF_ERROR(CheckFactor("learning_rate_drop", config.learning_rate_drop));
  EGERIA_RETURN_IF_ERROR(CheckFactor("learning_rate_rise", config.learning_rate_rise));
  if (config.unfreeze_steps.size() > kMaxEntries) {
    return BadPolicy("there are ", config.unfreeze_steps.size(), " unfreeze_steps, at most ", kMaxEntries);
  }
  for (const int64_t step : config.unfreeze_steps) {
    if (step < 0) return BadPolicy("unfreeze_steps has ", step, ", must be at least 0");
  }
  std::sort(config.unfreeze_steps.begin(), config.unfreeze_steps.end());
  return PolicyConfig(std::move(config));
}

absl::StatusOr<PolicyConfig> ResolveSchedule(const ScheduleConfig& config, const JobShape& shape) {
  if (shape.total_steps == 0) return BadPolicy("a schedule needs total_steps, which is unknown");
  if (config.entries.empty() || config.entries.size() > kMaxEntries) {
    return BadPolicy("the schedule has ", config.entries.size(), " entries, must be 1 to ", kMaxEntries);
  }
  double before = -1;
  for (const ScheduleConfig::Entry& entry : config.entries) {
    EGERIA_RETURN_IF_ERROR(CheckRange("a schedule's fraction", entry.fraction, 0, 1));
    if (entry.fraction <= before) {
      return BadPolicy("a schedule's fraction ", entry.fraction, " follows ", before, ", must rise");
    }
    EGERIA_RETURN_IF_ERROR(CheckRange("a schedule's frozen_prefix (the last module never freezes)", entry.frozen_prefix,
                                      0, shape.modules - 1));
    before = entry.fraction;
  }
  return PolicyConfig(config);
}

absl::Status CheckThreshold(const char* name, double value) {
  if (value > 0 && value < 1) return absl::OkStatus();
  return BadPolicy(name, " is ", value, ", must be over 0 and under 1");
}

int64_t PeriodOf(double every, const JobShape& shape) {
  return StepsOfPart(every, static_cast<double>(shape.total_steps));
}

absl::StatusOr<PolicyConfig> ResolveAuto(AutoConfig config, const JobShape& shape) {
  if (!config.signal_led) config.signal_led = shape.total_steps == 0;
  if (!*config.signal_led && shape.total_steps == 0) {
    return BadPolicy("signal_led is false, but a clock needs total_steps, which is unknown: give it with the job");
  }
  const bool signal_led = *config.signal_led;
  if (!config.second_opinion) {
    config.second_opinion = shape.total_steps == 0 || shape.total_steps >= kStepsOfSecondOpinion;
  }
  if (!config.start) config.start = signal_led ? 0.4 : 0.82;
  if (!config.area_left) config.area_left = signal_led ? 1 : 0.01;
  if (!config.early_share) config.early_share = signal_led ? 0 : 0.25;
  if (config.most_modules == 0) config.most_modules = signal_led ? 2 : kMaxStages;
  EGERIA_RETURN_IF_ERROR(CheckRange("start", *config.start, 0, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("area_left", *config.area_left, 0, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("early_share", *config.early_share, 0, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("every", config.every, kMinEvery, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("most_modules", config.most_modules, 1, kMaxStages));
  EGERIA_RETURN_IF_ERROR(CheckThreshold("threshold", config.threshold));
  EGERIA_RETURN_IF_ERROR(CheckThreshold("late_threshold", config.late_threshold));
  EGERIA_RETURN_IF_ERROR(CheckRange("least_readings", config.least_readings, kMinReadings, kMaxReadings));
  EGERIA_RETURN_IF_ERROR(CheckRange("readings", config.readings, config.least_readings, kMaxReadings));
  if (config.reprobe_every != 0) {
    EGERIA_RETURN_IF_ERROR(CheckRange("reprobe_every (0: never)", config.reprobe_every, kMinEvery, 1));
  }
  EGERIA_RETURN_IF_ERROR(CheckFactor("unfreeze_rise", config.unfreeze_rise));
  EGERIA_RETURN_IF_ERROR(CheckRange("most_backoff", config.most_backoff, 1, kMaxBackoff));
  EGERIA_RETURN_IF_ERROR(CheckRange("batch_size", config.batch_size, 2, kMaxBatch));
  if (config.interval_steps == 0 && shape.total_steps > 0) {
    config.interval_steps = GradientInterval(PeriodOf(config.every, shape), shape);
  }
  if (config.interval_steps != 0 || shape.total_steps > 0) {
    EGERIA_RETURN_IF_ERROR(CheckRange("interval_steps", config.interval_steps, 1, kMaxInterval));
  }
  return PolicyConfig(config);
}

absl::Status CheckArea(const JobShape& shape) {
  const std::vector<double>& rates = shape.planned_learning_rates;
  if (rates.size() < 2) {
    return BadPolicy(
        "area needs planned_learning_rates, which the job did not tell: let its scheduler be known to the "
        "session, or use fractions of the steps (area false)");
  }
  if (!HaveArea(rates)) {
    return BadPolicy("area needs planned_learning_rates that are finite, not negative and not all 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<PolicyConfig> ResolveStaged(StagedConfig config, const JobShape& shape) {
  if (shape.total_steps == 0) return BadPolicy("staged needs total_steps, which is unknown: give it with the job");
  EGERIA_RETURN_IF_ERROR(CheckRange("begin", config.begin, 0, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("end", config.end, config.begin, 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("stages", config.stages, 1, kMaxStages));
  EGERIA_RETURN_IF_ERROR(
      CheckRange("deepest_prefix (the last module never freezes)", config.deepest_prefix, 0, shape.modules - 1));
  EGERIA_RETURN_IF_ERROR(CheckRange("share", config.share, 0, 1));
  if (config.share > 0 && config.deepest_prefix > 0) return BadPolicy("give share or deepest_prefix, not both");
  EGERIA_RETURN_IF_ERROR(CheckThreshold("threshold", config.threshold));
  EGERIA_RETURN_IF_ERROR(CheckRange("every", config.every, kMinEvery, 1));
  if (config.interval_steps == 0) config.interval_steps = GradientInterval(PeriodOf(config.every, shape), shape);
  EGERIA_RETURN_IF_ERROR(CheckRange("interval_steps", config.interval_steps, 1, kMaxInterval));
  if (config.area) EGERIA_RETURN_IF_ERROR(CheckArea(shape));
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveFinetune(const FinetuneConfig& config, const JobShape& shape) {
  if (!(config.budget > 0 && config.budget <= 1)) {
    return BadPolicy("budget is ", config.budget, ", must be over 0 and at most 1");
  }
  EGERIA_RETURN_IF_ERROR(
      CheckRange("frozen_prefix (the last module never freezes)", config.frozen_prefix, 0, shape.modules - 1));
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveGradnorm(GradnormConfig config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckRange("percentile", config.percentile, 0, 100));
  EGERIA_RETURN_IF_ERROR(CheckRange("every", config.every, kMinEvery, 1));
  if (config.check_steps == 0) {
    config.check_steps = shape.total_steps == 0
                             ? kDefaultCheckSteps
                             : static_cast<int>(std::clamp<int64_t>(PeriodOf(config.every, shape), 1, kMaxInterval));
  }
  EGERIA_RETURN_IF_ERROR(CheckRange("check_steps", config.check_steps, 1, kMaxInterval));
  if (config.interval_steps == 0) config.interval_steps = std::max(1, config.check_steps / kReadingsPerGradnormCheck);
  EGERIA_RETURN_IF_ERROR(CheckRange("interval_steps", config.interval_steps, 1, kMaxInterval));
  return PolicyConfig(config);
}

// What a policy of each kind is called, how its constants are filled in, and how it is made.
struct Kind {
  const char* name;
  bool measures;  // so that it may cost more than it saves
  absl::StatusOr<PolicyConfig> (*resolve)(const PolicyConfig& config, const JobShape& shape);
  std::unique_ptr<Policy> (*make)(const PolicyConfig& config, const JobShape& shape);
};

template <typename Config, typename Made, auto Resolver>
constexpr Kind KindOf(const char* name, bool measures) {
  return {name, measures,
          [](const PolicyConfig& config, const JobShape& shape) { return Resolver(std::get<Config>(config), shape); },
          [](const PolicyConfig& config, const JobShape& shape) -> std::unique_ptr<Policy> {
            return std::make_unique<Made>(std::get<Config>(config), shape);
          }};
}

absl::StatusOr<PolicyConfig> ResolveNone(const NoneConfig& config, const JobShape&) { return PolicyConfig(config); }

// In the order of PolicyConfig's alternatives.
constexpr Kind kKinds[] = {
    KindOf<PlasticityConfig, PlasticityPolicy, ResolveRule<PlasticityConfig>>("plasticity", true),
    KindOf<ScheduleConfig, SchedulePolicy, ResolveSchedule>("schedule", false),
    KindOf<NoneConfig, NonePolicy, ResolveNone>("none", false),
    KindOf<AutoConfig, AutoPolicy, ResolveAuto>("auto", true),
    KindOf<StagedConfig, StagedPolicy, ResolveStaged>("staged", true),
    KindOf<FinetuneConfig, FinetunePolicy, ResolveFinetune>("finetune", false),
    KindOf<GradnormConfig, GradnormPolicy, ResolveGradnorm>("gradnorm", true),
    KindOf<ActnormConfig, PlasticityPolicy, ResolveRule<ActnormConfig>>("actnorm", true),
};
static_assert(std::size(kKinds) == std::variant_size_v<PolicyConfig>);

absl::Status CheckShape(const JobShape& shape) {
  if (shape.modules < 2) {
    return BadPolicy("modules is ", shape.modules, ", must be at least 2: the last layer module never freezes");
  }
  if (shape.total_steps < 0) return BadPolicy("total_steps is ", shape.total_steps, ", must be at least 0");
  if (!(shape.budget >= 0 && shape.budget < 1)) {
    return BadPolicy("budget is ", shape.budget, ", must be at least 0 and under 1: the part of the time to save");
  }
  if (shape.budget > 0 && shape.total_steps == 0) {
    return BadPolicy("a budget needs the number of steps of the whole training; give total_steps");
  }
  if (shape.first_step < 0) return BadPolicy("the first step is ", shape.first_step, ", must be at least 0");
  return absl::OkStatus();
}

}  // namespace

const char* PolicyName(const PolicyConfig& config) { return kKinds[config.index()].name; }

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

const PlasticityConfig* RuleOf(const PolicyConfig& config) {
  if (const auto* plasticity = std::get_if<PlasticityConfig>(&config)) return plasticity;
  return std::get_if<ActnormConfig>(&config);
}

absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckShape(shape));
  return kKinds[config.index()].resolve(config, shape);
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_ASSIGN_OR_RETURN(const PolicyConfig resolved, Resolve(config, shape));
  std::unique_ptr<Policy> policy = kKinds[resolved.index()].make(resolved, shape);
  if (shape.budget > 0) policy = std::make_unique<BudgetedPolicy>(std::move(policy), shape);
  // A clock's readings are few: some before each check, and before its start a hundred at most.
  if (kKinds[resolved.index()].measures && !FollowsAClock(resolved) && shape.total_steps > 0) {
    policy = std::make_unique<PayingPolicy>(std::move(policy), shape);
  }
  return policy;
}

}  // namespace egeria::policy
