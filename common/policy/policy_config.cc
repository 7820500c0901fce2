#include "common/policy/policy_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "common/policy/constants.h"
#include "common/policy/training_fractions.h"
#include "common/policy/wrapped_policy.h"

namespace egeria::policy {
namespace {

// The bound on intervals bounds the memory and time of the bootstrapping stage (6n losses).
constexpr int kMaxInterval = 100'000;
constexpr int kDefaultInterval = 50;
constexpr int kDefaultCheckSteps = 500;
constexpr int kReadingsPerGradnormCheck = 10;

constexpr Range kPart{0, 1};
constexpr Range kPositivePart{0, 1, Range::Ends::kOverMin};
constexpr Range kThreshold{0, 1, Range::Ends::kOverMinUnderMax};
constexpr Range kFactor{1, 1e6, Range::Ends::kOverMin, "never"};
constexpr Range kEvery{1e-4, 1};
constexpr Range kInterval{1, kMaxInterval};
constexpr Range kModules{1, 512};
constexpr Range kPrefix{1, 511};
constexpr Range kReadings{4, 1000};  // an interval from fewer would be a guess
constexpr Range kBatch{2, 4096};
constexpr Range kAnyStep{0, 9e18};
constexpr const char* kOfSteps = "of the steps";
constexpr const char* kAt64 = "SNR at 64 samples";

// The paper's guideline is n = total steps / (2 W) / modules / 1.75: each module gets time for about 2W readings, and
// the modules together finish well before the training does.
int GuidelineInterval(int window, const JobShape& shape) {
  if (shape.total_steps == 0) return kDefaultInterval;
  const double interval = static_cast<double>(shape.total_steps) / (2.0 * window) / shape.modules / 1.75;
  return static_cast<int>(std::clamp(std::floor(interval), 1.0, static_cast<double>(kMaxInterval)));
}

int64_t PeriodOf(double every, const JobShape& shape) {
  return StepsOfPart(every, static_cast<double>(shape.total_steps));
}

// `Config` is PlasticityConfig or ActnormConfig.
template <typename Config>
absl::StatusOr<PolicyConfig> ResolveRule(Config config, const JobShape& shape) {
  if (config.interval_steps == 0) config.interval_steps = GuidelineInterval(config.window, shape);
  std::sort(config.unfreeze_steps.begin(), config.unfreeze_steps.end());
  return PolicyConfig(std::move(config));
}

absl::Status CheckPrefix(const char* name, int prefix, const JobShape& shape) {
  if (prefix >= 0 && prefix < shape.modules) return absl::OkStatus();
  return BadPolicy(name, " (the last module never freezes) is ", prefix, ", must be 0 to ", shape.modules - 1);
}

absl::StatusOr<PolicyConfig> ResolveSchedule(const ScheduleConfig& config, const JobShape& shape) {
  if (shape.total_steps == 0) return BadPolicy("a schedule needs total_steps, which is unknown");
  if (config.entries.empty() || config.entries.size() > kMaxEntries) {
    return BadPolicy("the schedule has ", config.entries.size(), " entries, must be 1 to ", kMaxEntries);
  }
  double before = -1;
  for (const ScheduleConfig::Entry& entry : config.entries) {
    if (!kPart.Holds(entry.fraction)) {
      return BadPolicy("a schedule's fraction is ", entry.fraction, ", must be ", kPart.Text());
    }
    if (entry.fraction <= before) {
      return BadPolicy("a schedule's fraction ", entry.fraction, " follows ", before, ", must rise");
    }
    EGERIA_RETURN_IF_ERROR(CheckPrefix("a schedule's frozen_prefix", entry.frozen_prefix, shape));
    before = entry.fraction;
  }
  return PolicyConfig(config);
}

// `Config` is AutoConfig or SnrConfig.
template <typename Config>
absl::StatusOr<PolicyConfig> ResolveReadings(Config config, const JobShape& shape) {
  if (config.readings < config.min_readings) {
    return BadPolicy("readings is ", config.readings, ", must be at least min_readings, ", config.min_readings);
  }
  if (config.interval_steps == 0 && shape.total_steps > 0) {
    config.interval_steps = GradientInterval(PeriodOf(config.every, shape), shape);
  }
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveAuto(const AutoConfig& config, const JobShape& shape) {
  if (shape.total_steps > 0) return ResolveReadings(config, shape);
  const AutoConfig defaults;
  SnrConfig snr{config};
  if (config.start != defaults.start) snr.start = config.start;
  if (config.max_modules != defaults.max_modules) snr.max_modules = config.max_modules;
  return ResolveReadings(snr, shape);
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
  if (config.end < config.begin) return BadPolicy("end is ", config.end, ", must be at least begin, ", config.begin);
  EGERIA_RETURN_IF_ERROR(CheckPrefix("deepest_prefix", config.deepest_prefix, shape));
  if (config.share > 0 && config.deepest_prefix > 0) return BadPolicy("give share or deepest_prefix, not both");
  if (config.interval_steps == 0) config.interval_steps = GradientInterval(PeriodOf(config.every, shape), shape);
  if (config.area) EGERIA_RETURN_IF_ERROR(CheckArea(shape));
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveFinetune(const FinetuneConfig& config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckPrefix("frozen_prefix", config.frozen_prefix, shape));
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveGradnorm(GradnormConfig config, const JobShape& shape) {
  if (config.check_steps == 0) {
    config.check_steps = shape.total_steps == 0
                             ? kDefaultCheckSteps
                             : static_cast<int>(std::clamp<int64_t>(PeriodOf(config.every, shape), 1, kMaxInterval));
  }
  if (config.interval_steps == 0) config.interval_steps = std::max(1, config.check_steps / kReadingsPerGradnormCheck);
  return PolicyConfig(config);
}

absl::StatusOr<PolicyConfig> ResolveNone(const NoneConfig& config, const JobShape&) { return PolicyConfig(config); }

template <typename Config>
std::vector<Constant> ConstantsOfRule() {
  return {
      ConstantOf<Config>("interval_steps", &Config::interval_steps, "The steps between two plasticity readings (n)",
                         "steps", kInterval,
                         "total steps / (2 window) / modules / 1.75, or 50 where the total is unknown"),
      ConstantOf<Config>("window", &Config::window, "The readings to smooth over and to wait for (W)", "readings",
                         {3, 1000}),
      ConstantOf<Config>("tolerance", &Config::tolerance,
                         "The threshold of the slope, as a share of the largest |slope| among the first three (T)", "",
                         kPositivePart),
      ConstantOf<Config>("batch_size", &Config::batch_size, "The samples of a plasticity reading (b)", "samples",
                         kBatch),
      ConstantOf<Config>("signed_slope", &Config::signed_slope,
                         "The slope is compared with its sign, as the paper's listing has it"),
      ConstantOf<Config>("bootstrap", &Config::bootstrap, "Nothing freezes before the loss has settled"),
      ConstantOf<Config>(
          "learning_rate_drop", &Config::learning_rate_drop,
          "All unfreezes when the learning rate is at most the rate at the first freeze, divided by this", "", kFactor),
      ConstantOf<Config>(
          "learning_rate_rise", &Config::learning_rate_rise,
          "All unfreezes when the learning rate is at least its minimum since the first freeze times this", "",
          kFactor),
      ConstantOf<Config>("unfreeze_steps", &Config::unfreeze_steps, "All unfreezes at these steps", "steps", kAnyStep),
  };
}

// `Config` is AutoConfig or SnrConfig.
template <typename Config>
std::vector<Constant> ConstantsOfReadings() {
  return {
      ConstantOf<Config>("every", &Config::every, "The time between two checks", kOfSteps, kEvery),
      ConstantOf<Config>("max_modules", &Config::max_modules, "The modules that one check may freeze", "modules",
                         kModules),
      ConstantOf<Config>("threshold", &Config::threshold, "The signal-to-noise ratio under which gradients are noise",
                         kAt64, kThreshold),
      ConstantOf<Config>("late_threshold", &Config::late_threshold,
                         "The threshold for modules that begin in the last third of the time", kAt64, kThreshold),
      ConstantOf<Config>("interval_steps", &Config::interval_steps, "The steps between two gradient readings", "steps",
                         kInterval, "a fiftieth of `every`, at least 2, or at least 20 with one rank"),
      ConstantOf<Config>("readings", &Config::readings, "The most readings that an estimate is made from", "readings",
                         kReadings),
      ConstantOf<Config>("min_readings", &Config::min_readings, "The fewest readings that an estimate is made from",
                         "readings", kReadings),
      ConstantOf<Config>("unfreeze_rise", &Config::unfreeze_rise,
                         "A module unfreezes when the learning rate is over the rate at its freeze, times this", "",
                         kFactor),
  };
}

template <typename Config>
std::vector<Constant> WithReadings(std::vector<Constant> constants) {
  std::vector<Constant> others = ConstantsOfReadings<Config>();
  std::move(others.begin(), others.end(), std::back_inserter(constants));
  return constants;
}

std::vector<Constant> ConstantsOfAuto() {
  return WithReadings<AutoConfig>({
      ConstantOf("start", &AutoConfig::start, "Nothing but an early prefix freezes before this part", kOfSteps, kPart),
      ConstantOf("lr_area_left", &AutoConfig::lr_area_left,
                 "Nothing freezes while more than this part of the area under the learning rates is to come",
                 "of the area", kPart),
      ConstantOf("early_share", &AutoConfig::early_share,
                 "A prefix freezes before the start where it gives up at most this part of what its time is worth",
                 "of a prefix's share of the time", {0, 1, Range::Ends::kBoth, "nothing early"}),
  });
}

std::vector<Constant> ConstantsOfSnr() {
  return WithReadings<SnrConfig>(
      {ConstantOf("start", &SnrConfig::start, "Nothing freezes before this part", kOfSteps, kPart)});
}

std::vector<Constant> ConstantsOfStaged() {
  return {
      ConstantOf("begin", &StagedConfig::begin, "The first stage comes at this part", kOfSteps, kPart),
      ConstantOf("end", &StagedConfig::end, "The last stage comes at this part, not before the first", kOfSteps, kPart),
      ConstantOf("stages", &StagedConfig::stages, "The number of stages", "", kModules),
      ConstantOf("deepest_prefix", &StagedConfig::deepest_prefix, "The prefix of the last stage, in place of `share`",
                 "modules", kPrefix, "all but the last module"),
      ConstantOf("share", &StagedConfig::share, "The last stage's prefix is the smallest that saves this much",
                 "of a step's time", kPositivePart, "none"),
      ConstantOf("area", &StagedConfig::area,
                 "begin and end are parts of the area under the planned learning rates, which the job must tell"),
      ConstantOf("veto", &StagedConfig::veto, "A signal clearly over the threshold postpones a stage"),
      ConstantOf("threshold", &StagedConfig::threshold, "The threshold of the veto", kAt64, kThreshold),
      ConstantOf("every", &StagedConfig::every, "A stage that was postponed is tried again after this time", kOfSteps,
                 kEvery),
      ConstantOf("interval_steps", &StagedConfig::interval_steps, "The steps between two gradient readings", "steps",
                 kInterval, "a fiftieth of `every`, at least 2, or at least 20 with one rank"),
  };
}

std::vector<Constant> ConstantsOfFinetune() {
  return {
      ConstantOf("budget", &FinetuneConfig::budget, "The prefix freezes first that saves most nearly this much",
                 "of a step's time", kPositivePart),
      ConstantOf("stages", &FinetuneConfig::stages, "The prefix freezes in so many stages, ever deeper", "", kModules),
      ConstantOf("frozen_prefix", &FinetuneConfig::frozen_prefix, "This prefix freezes, in place of `budget`",
                 "modules", kPrefix, "as `budget` says"),
  };
}

std::vector<Constant> ConstantsOfGradnorm() {
  return {
      ConstantOf("percentile", &GradnormConfig::percentile,
                 "A module counts as settled whose gradient norm changes less than this percentile of the active ones'",
                 "%", {0, 100}),
      ConstantOf("interval_steps", &GradnormConfig::interval_steps, "The steps between two gradient readings", "steps",
                 kInterval, "a tenth of check_steps"),
      ConstantOf("every", &GradnormConfig::every, "The time between two checks", kOfSteps, kEvery),
      ConstantOf("check_steps", &GradnormConfig::check_steps, "The steps between two checks", "steps", kInterval,
                 "`every` of the steps, or 500 where the total is unknown"),
  };
}

std::vector<Constant> ConstantsOfSchedule() {
  return {ConstantOf("entries", &ScheduleConfig::entries,
                     "Each {\"fraction\": part of the steps, \"frozen_prefix\": modules} holds from its step on")};
}

enum By { kClock, kClockAfterTimes, kPlasticity, kGradients };  // names what decides

// These functions say whether a policy acts on the mere passing of steps.
bool Always(const PolicyConfig&) { return true; }
bool Never(const PolicyConfig&) { return false; }
bool AtUnfreezeSteps(const PolicyConfig& config) { return !RuleOf(config)->unfreeze_steps.empty(); }

template <typename Config, auto Resolver>
PolicyKind Kind(const char* name, By by, bool (*acts_at_steps)(const PolicyConfig&), std::vector<Constant> constants,
                const char* sentence) {
  return {name,
          sentence,
          by == kClock || by == kClockAfterTimes,
          by == kPlasticity,
          by == kClockAfterTimes,
          acts_at_steps,
          Config(),
          std::move(constants),
          [](const PolicyConfig& config, const JobShape& shape) { return Resolver(std::get<Config>(config), shape); },
          [](const PolicyConfig& config, const JobShape& shape) { return NewPolicy(std::get<Config>(config), shape); }};
}

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

const std::vector<PolicyKind>& PolicyKinds() {
  static const auto* kinds = new std::vector<PolicyKind>{
      Kind<PlasticityConfig, ResolveRule<PlasticityConfig>>("plasticity", kPlasticity, AtUnfreezeSteps,
                                                            ConstantsOfRule<PlasticityConfig>(),
                                                            "plasticity that has become stationary"),
      Kind<ActnormConfig, ResolveRule<ActnormConfig>>("actnorm", kPlasticity, AtUnfreezeSteps,
                                                      ConstantsOfRule<ActnormConfig>(),
                                                      "the rule of `plasticity` on another metric"),
      Kind<AutoConfig, ResolveAuto>(
          "auto", kClock, Always, ConstantsOfAuto(),
          "what is left of the steps and of the learning rate, with clear gradients as a veto"),
      Kind<StagedConfig, ResolveStaged>("staged", kClock, Always, ConstantsOfStaged(), "a plain clock"),
      Kind<FinetuneConfig, ResolveFinetune>("finetune", kClockAfterTimes, Never, ConstantsOfFinetune(),
                                            "a time budget, from the beginning"),
      Kind<GradnormConfig, ResolveGradnorm>("gradnorm", kGradients, Never, ConstantsOfGradnorm(),
                                            "gradient norms that change least"),
      Kind<ScheduleConfig, ResolveSchedule>("schedule", kClock, Always, ConstantsOfSchedule(),
                                            "given prefixes at given fractions of the steps"),
      Kind<NoneConfig, ResolveNone>("none", kClock, Never, {}, "nothing; it never freezes"),
      Kind<SnrConfig, ResolveReadings<SnrConfig>>("snr", kGradients, Always, ConstantsOfSnr(),
                                                  "gradients that surely are noise"),
  };
  return *kinds;
}

const char* PolicyName(const PolicyConfig& config) { return KindOf(config).name; }

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyKind& kind : PolicyKinds()) names.push_back(kind.name);
  return names;
}

const PlasticityConfig* RuleOf(const PolicyConfig& config) {
  if (const auto* plasticity = std::get_if<PlasticityConfig>(&config)) return plasticity;
  return std::get_if<ActnormConfig>(&config);
}

absl::StatusOr<PolicyConfig> Resolve(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_RETURN_IF_ERROR(CheckShape(shape));
  EGERIA_RETURN_IF_ERROR(CheckConstants(config));
  return KindOf(config).resolve(config, shape);
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const PolicyConfig& config, const JobShape& shape) {
  EGERIA_ASSIGN_OR_RETURN(const PolicyConfig resolved, Resolve(config, shape));
  const PolicyKind& kind = KindOf(resolved);
  std::unique_ptr<Policy> policy = kind.make(resolved, shape);
  if (shape.budget > 0) policy = HeldToBudget(std::move(policy), shape);
  // A schedule is somebody's order, and is followed whatever it costs.
  const bool is_order =
      std::holds_alternative<ScheduleConfig>(resolved) || std::holds_alternative<NoneConfig>(resolved);
  if (!is_order && shape.total_steps > 0) policy = FreezingOnlyWhatIsWorthIt(std::move(policy), shape);
  // A clock measures little: some readings before each check, and before its start a hundred at most.
  if (!kind.follows_a_clock && shape.total_steps > 0) policy = SwitchedOffUnlessItPays(std::move(policy), shape);
  return BeginningBehindScript(std::move(policy));
}

}  // namespace egeria::policy
