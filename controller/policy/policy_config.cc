#include "controller/policy/policy_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "controller/policy/plasticity_policy.h"
#include "controller/policy/schedule_policy.h"

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

absl::StatusOr<PolicyConfig> ResolvePlasticity(PlasticityConfig config, const JobShape& shape) {
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
    EGERIA_RETURN_IF_ERROR(CheckRange("a schedule's frozen_prefix (the last module never freezes)",
                                      entry.frozen_prefix, 0, shape.modules - 1));
    before = entry.fraction;
  }
  return PolicyConfig(config);
}

absl::Status CheckShape(const JobShape& shape) {
  if (shape.modules < 2) {
    return BadPolicy("modules is ", shape.modules, ", must be at least 2: the last layer module never freezes");
  }
  if (shape.total_steps < 0) return BadPolicy("total_steps is ", shape.total_steps, ", must be at least 0");
  if (shape.first_step < 0) return BadPolicy("the first step is ", shape.first_step, ", must be at least 0");
  return absl::OkStatus();
}

}  // namespace

const char* PolicyName(const PolicyConfig& config) {
  if (std::holds_alternative<PlasticityConfig>(config)) return "plasticity";
  if (std::holds_alternative<ScheduleConfig>(config)) return "schedule";
  return "none";
}

absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckShape(shape));
  if (const auto* plasticity = std::get_if<PlasticityConfig>(&config)) {
    return ResolvePlasticity(*plasticity, shape);
  }
  if (const auto* schedule = std::get_if<ScheduleConfig>(&config)) return ResolveSchedule(*schedule, shape);
  return config;
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_ASSIGN_OR_RETURN(const PolicyConfig resolved, Resolve(config, shape));
  if (const auto* plasticity = std::get_if<PlasticityConfig>(&resolved)) {
    return std::make_unique<PlasticityPolicy>(*plasticity, shape);
  }
  if (const auto* schedule = std::get_if<ScheduleConfig>(&resolved)) {
    return std::make_unique<SchedulePolicy>(*schedule, shape);
  }
  return std::make_unique<NonePolicy>(shape.modules);
}

}  // namespace egeria::policy
