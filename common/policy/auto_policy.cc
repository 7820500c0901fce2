#include "common/policy/auto_policy.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr int kTrendWindow = 5;  // W of the second opinion
constexpr int64_t kTrendReadingsPerPeriod = 10;
constexpr int64_t kMinTrendInterval = 10;
constexpr int64_t kMaxInterval = 100'000;
constexpr double kLargestMagnitude = 1e100;

// Before the start a freeze gives up what is left, which may be most of the area; no part of a training is known to
// make next to nothing of its progress before this part of the steps, nor where the rates to come are hardly lower than
// those before.
constexpr double kEarliestFreeze = 0.4;
constexpr double kRatesThatFallForEarly = 0.75;

// Before the start gradients are read at every hundredth of the steps, from so many readings before the first possible
// freeze on. In a shorter training they would be so dense that they cost more than what they might find saves.
constexpr double kEarlyReadings = 0.01;
constexpr int64_t kEarlyLead = 30;
constexpr int64_t kMinStepsOfEarlyReadings = 2'000;
constexpr int64_t kOfOneRank = 10;  // times as many: a hundred readings are then 1 % of the time at most

constexpr int64_t kPeriodOfUnknownTotal = 500;

// A signal is worth the less the less of the learning rate is left to follow it with: of the clock's veto, thresholds
// hold while this part of the area is to come, and rise as it shrinks.
constexpr double kAreaOfThresholds = 0.01;
constexpr double kMinArea = 1e-6;

// By the clock, the rates to come must be lower than this part of those of the whole training, on average: at a
// constant rate little is left at the very end, too, but what is frozen then would have learned like the rest.
constexpr double kRatesThatFall = 0.5;

// A reading of what is frozen costs about what freezing saves in a step, so that in a short training the probes would
// take all that was saved: they are so far apart that at most one step in so many is theirs.
constexpr int64_t kStepsPerProbeReading = 50;

// A probe without any reading in a period, and in so many reading intervals and steps, has none to expect. With each
// such probe in a row the next one is twice as far away, up to 2^6 times.
constexpr int64_t kIntervalsOfSilence = 10;
constexpr int64_t kStepsOfSilence = 300;
constexpr int kMaxDoublings = 6;

std::string OnePart() {
  return "[ONE_PART] the gradients of a step come as one, so that their noise cannot be told: use two ranks or more, "
         "or several backward passes a step, or a model whose parts the worker can replay";
}

// The part of the steps at which checks begin.
double StartOf(const AutoConfig& config, const RemainingArea& area, int64_t total_steps) {
  const std::optional<int64_t> by_area = area.StepWith(*config.area_left);
  if (!by_area || total_steps == 0) return *config.start;
  return std::max(*config.start, static_cast<double>(*by_area) / static_cast<double>(total_steps));
}

bool IsUsable(const std::optional<double>& value) {
  return value && *value >= 0 && *value <= kLargestMagnitude;  // false for NaN
}

}  // namespace

AutoPolicy::AutoPolicy(const AutoConfig& config, const JobShape& shape)
    : config_(config),
      shape_(shape),
      area_(shape),
      clock_(StartOf(config, area_, shape.total_steps), config.every, config.most_backoff, shape.total_steps),
      early_(*config.early_share, *config.area_left, shape),
      gate_(config.threshold, config.late_threshold, config.readings, config.least_readings, TimeSharesOf(shape)),
      probe_(
          SnrGate(config.threshold, config.late_threshold, config.readings, config.least_readings, TimeSharesOf(shape)),
          shape.modules, config.least_readings, config.readings),
      trend_(kTrendWindow),
      unasked_until_(shape.first_step),
      rate_at_freeze_(static_cast<size_t>(shape.modules)) {
  EGERIA_CHECK(shape.modules >= 2 && config.signal_led && config.start && config.area_left && config.early_share &&
               config.second_opinion);
}

std::optional<Decision> AutoPolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  std::optional<Decision> by_rates;
  if (observation.zero_lr_prefix) by_rates = ObserveStill(*observation.zero_lr_prefix);
  if (IsUsable(observation.learning_rate)) {
    if (auto unfreeze = ObserveRate(*observation.learning_rate)) by_rates = std::move(unfreeze);
  }
  if (by_rates) return by_rates;
  if (!*config_.signal_led) {
    const double left = Left(step_);
    const double factor = std::max(1.0, kAreaOfThresholds / std::max(kMinArea, left));
    gate_.Ease(factor);
    probe_.Ease(factor);
  }
  if (observation.gradients) {
    if (auto decision = ObserveGradients(*observation.gradients)) return decision;
  }
  if (IsUsable(observation.plasticity) && observation.module.value_or(frozen_prefix_) == frozen_prefix_) {
    trend_.Add(*observation.plasticity);
  }
  EndProbeWithoutReadings();
  BeginProbeIfDue();
  if (auto decision = CheckEarly()) return decision;
  return Check();
}

std::optional<Decision> AutoPolicy::ObserveStill(int zero_lr_prefix) {
  const int before = std::exchange(zero_lr_prefix_, std::clamp(zero_lr_prefix, 0, shape_.modules - 1));
  if (zero_lr_prefix_ == before) return std::nullopt;  // what somebody else has decided since then stands
  if (zero_lr_prefix_ > frozen_prefix_) {
    return Freeze(zero_lr_prefix_,
                  absl::StrFormat("nothing changes modules 0 to %d: their learning rates are 0", zero_lr_prefix_ - 1));
  }
  if (zero_lr_prefix_ < std::min(before, frozen_prefix_)) {
    return Unfreeze(zero_lr_prefix_,
                    absl::StrFormat("the learning rate of module %d is not 0 any more", zero_lr_prefix_));
  }
  return std::nullopt;
}

std::optional<Decision> AutoPolicy::ObserveRate(double rate) {
  const std::optional<double> before = rates_.newest();
  clock_.ObserveRate(step_, rate);
  area_.Observe(step_, rate);
  for (int module = 0; module < frozen_prefix_; ++module) {
    std::optional<double>& known = rate_at_freeze_[static_cast<size_t>(module)];
    if (!known) known = rate;
  }
  if (rates_.Observe(step_, rate)) {
    fell_at_once_ = fell_at_once_ || rate < *before;
    early_.Forget();
    early_.BeginProbe();
    gate_.Forget();
    trend_.Forget();
    probe_.Restart(step_);
    clock_.StartOver(step_);
    readings_from_ = step_;
  }
  if (config_.unfreeze_rise == 0) return std::nullopt;
  for (int module = zero_lr_prefix_; module < frozen_prefix_; ++module) {
    const double at_freeze = *rate_at_freeze_[static_cast<size_t>(module)];
    if (rate <= at_freeze * config_.unfreeze_rise * (1 + 1e-9)) continue;
    return Unfreeze(module, absl::StrFormat("learning rate %.4g is over %g times the %.4g at which module %d froze",
                                            rate, config_.unfreeze_rise, at_freeze, module));
  }
  return std::nullopt;
}

std::optional<Decision> AutoPolicy::ObserveGradients(const GradientReading& reading) {
  newest_reading_ = std::max(newest_reading_, reading.step);
  one_part_ = reading.parts < 2;
  if (one_part_) {
    probe_.Stop();
    next_probe_ = step_ + StepsToNextProbe(0);
    return std::nullopt;
  }
  if (reading.step <= readings_from_) return std::nullopt;
  gate_.Add(reading);
  if (!probe_.running()) {
    early_.Add(reading);
    return std::nullopt;
  }
  unanswered_probes_ = 0;
  early_.AddToProbe(reading);
  const std::optional<std::string> too_early = TooEarly();
  const int exempt = std::max(zero_lr_prefix_, early_.prefix());
  const auto found = probe_.Observe(reading, frozen_prefix_, exempt,
                                    too_early ? Reprobe::Burden::kOnFreeze : Reprobe::Burden::kOnSignal);
  if (probe_.running()) return std::nullopt;
  next_probe_ = step_ + StepsToNextProbe(probe_.readings());
  if (early_.IsContradicted()) {
    return Unfreeze(zero_lr_prefix_,
                    absl::StrFormat("two probes in a row of what is frozen found that modules 0 to %d make too "
                                    "much of the progress",
                                    early_.prefix() - 1));
  }
  if (!found) return std::nullopt;
  if (!found->learns && LateEnoughForEarly(step_)) {
    const double left = Left(step_);
    if (auto justified = early_.Justified(frozen_prefix_, left)) {
      if (frozen_before_) {  // it gives up more than what is left now: at most what was left when it could freeze first
        const double first_left = Left(StepsOfPart(kEarliestFreeze, static_cast<double>(shape_.total_steps)));
        justified->given_up = std::min(*config_.area_left, justified->missed * first_left);
      }
      early_.Book(*justified, left);
      return std::nullopt;
    }
  }
  clock_.Refused(step_);
  const std::string snr = absl::StrFormat("gradient SNR of modules 0 to %d now %s", frozen_prefix_ - 1,
                                          probe_.Describe(frozen_prefix_, exempt));
  if (!found->learns) {
    return Unfreeze(found->prefix, absl::StrFormat("what is frozen is not surely noise (%s), and %s", snr, *too_early));
  }
  return Unfreeze(found->prefix,
                  absl::StrFormat("two probes in a row of what is frozen found that module %d could learn "
                                  "still: %s",
                                  *found->learns, snr));
}

void AutoPolicy::BeginProbeIfDue() {
  if (config_.reprobe_every == 0 || one_part_ || probe_.running() || step_ < next_probe_) return;
  if (frozen_prefix_ <= zero_lr_prefix_) return;
  probe_.Begin(step_);
  early_.BeginProbe();
}

void AutoPolicy::EndProbeWithoutReadings() {
  if (!probe_.running()) return;
  const int64_t silence = std::max(
      {clock_.period().value_or(kPeriodOfUnknownTotal), kIntervalsOfSilence * ProbeInterval(), kStepsOfSilence});
  if (step_ < probe_.newest_step() + silence) return;
  probe_.Stop();
  next_probe_ = step_ + (StepsToNextProbe(0) << std::min(unanswered_probes_++, kMaxDoublings));
}

bool AutoPolicy::LateEnoughForEarly(int64_t step) const {
  return early_.possible() && !fell_at_once_ &&
         step >= StepsOfPart(kEarliestFreeze, static_cast<double>(shape_.total_steps)) &&
         MeanRateToCome(step) <= kRatesThatFallForEarly;
}

bool AutoPolicy::MayFreezeEarlyWithin(int64_t steps) const {
  return clock_.start() && step_ < *clock_.start() &&
         LateEnoughForEarly(std::min(step_ + steps, shape_.total_steps - 1));
}

bool AutoPolicy::ReadsForEarly() const {
  const int64_t least = kMinStepsOfEarlyReadings * (shape_.ranks == 1 ? kOfOneRank : 1);
  return !one_part_ && shape_.total_steps >= least && MayFreezeEarlyWithin(kEarlyLead * EarlyInterval());
}

std::optional<Decision> AutoPolicy::CheckEarly() {
  if (step_ < next_early_ || probe_.running() || !MayFreezeEarlyWithin(0)) return std::nullopt;
  const int most = std::min(frozen_prefix_ + config_.most_modules, shape_.modules - 1);
  const double left = Left(step_);
  const auto found = early_.Look(frozen_prefix_, most, left);
  next_early_ = step_ + *clock_.period();
  if (!found) return std::nullopt;
  early_.Book(*found, left);
  return Freeze(found->prefix, found->reason);
}

std::optional<Decision> AutoPolicy::Check() {
  if (!clock_.IsDue(step_) || frozen_prefix_ == shape_.modules - 1 || IsOver()) return std::nullopt;
  if (TooMuchLeft(step_)) {
    unasked_until_ = step_;
    clock_.Undecided(step_);
    return std::nullopt;
  }
  if (AwaitsReadings()) return std::nullopt;  // due until they are there
  const int most = std::min(frozen_prefix_ + config_.most_modules, shape_.modules - 1);
  for (int prefix = most; prefix > frozen_prefix_; --prefix) {
    if (Refusal(prefix)) continue;
    clock_.Passed(step_);
    return Freeze(prefix, ReasonFor(prefix));
  }
  if (gate_.IsFull(frozen_prefix_)) {
    clock_.Refused(step_);
  } else {
    clock_.Undecided(step_);
  }
  return std::nullopt;
}

bool AutoPolicy::AwaitsReadings() const {
  if (gate_.HasEstimate(frozen_prefix_)) return false;
  if (*config_.signal_led) return true;
  if (one_part_) return false;
  // Where the rates have just fallen, or the job has just begun or gone back, nobody was asked before.
  if (unasked_until_ > 0 && step_ < unasked_until_ + 2 * *clock_.period()) return true;
  return ToldForCheck() && step_ < *clock_.next() + *clock_.period();
}

bool AutoPolicy::ToldForCheck() const { return newest_reading_ >= 0 && newest_reading_ >= *clock_.next() - Lead(); }

std::optional<std::string> AutoPolicy::TooEarly() const {
  if (shape_.total_steps > 0 && step_ < *clock_.start()) {
    return absl::StrFormat("step %d of %d is before %g %% of the training, where freezing costs accuracy", step_,
                           shape_.total_steps,
                           100 * static_cast<double>(*clock_.start()) / static_cast<double>(shape_.total_steps));
  }
  if (!clock_.next()) {
    return absl::StrFormat(
        "the learning rate %.4g has not fallen to a hundredth of its peak of %.4g, and how long the "
        "training lasts is unknown",
        rates_.newest().value_or(0), clock_.peak_rate());
  }
  return TooMuchLeft(step_);
}

std::optional<std::string> AutoPolicy::TooMuchLeft(int64_t step) const {
  const std::optional<double> left = area_.After(step);
  if (!left) return std::nullopt;
  const double most = *config_.area_left - early_.given_up();  // the rest of what may be given up
  if (*left > most * (1 + 1e-9)) {
    return absl::StrFormat(
        "%.3g %% of the area under the learning rates is still to come, over %g %%, and freezing "
        "would cost accuracy",
        100 * *left, 100 * most);
  }
  return *config_.signal_led ? std::nullopt : RatesStayHigh(step);
}

double AutoPolicy::Left(int64_t step) const { return area_.After(step).value_or(1); }

double AutoPolicy::MeanRateToCome(int64_t step) const {
  const int64_t steps_left = shape_.total_steps - step;
  return steps_left > 0 ? Left(step) * static_cast<double>(shape_.total_steps) / static_cast<double>(steps_left) : 0;
}

std::optional<std::string> AutoPolicy::RatesStayHigh(int64_t step) const {
  const double mean = MeanRateToCome(step);
  if (mean <= kRatesThatFall) return std::nullopt;
  return absl::StrFormat(
      "the learning rates to come are on average %.2g times those of the whole training: the modules "
      "learn until the end",
      mean);
}

std::string AutoPolicy::ReasonFor(int prefix) const {
  const std::string snr = gate_.Describe(prefix, zero_lr_prefix_);
  if (*config_.signal_led) {
    return snr.empty() ? absl::StrFormat("all gradients of modules %d to %d are exactly 0", frozen_prefix_, prefix - 1)
                       : absl::StrFormat("modules 0 to %d: gradient SNR %s at the job's batch is mostly noise",
                                         prefix - 1, snr);
  }
  const std::optional<double> left = area_.After(step_);
  return absl::StrCat(
      "step ", step_, " of ", shape_.total_steps,
      left ? absl::StrFormat(", %.3g %% of the area under the learning rates to come", 100 * *left) : "",
      snr.empty() ? "" : absl::StrFormat("; modules 0 to %d: gradient SNR %s", prefix - 1, snr));
}

std::optional<std::string> AutoPolicy::Refusal(int prefix) const {
  if (*config_.second_opinion && trend_.IsRising()) {
    return absl::StrFormat("module %d: its plasticity has risen by more than a fifth over the last %d readings",
                           frozen_prefix_, kTrendWindow);
  }
  return *config_.signal_led ? gate_.Refusal(frozen_prefix_, prefix, zero_lr_prefix_)
                             : gate_.ClearSignal(frozen_prefix_, prefix, zero_lr_prefix_);
}

std::optional<std::string> AutoPolicy::Objection(int prefix) const {
  if (prefix <= std::max(frozen_prefix_, zero_lr_prefix_)) return std::nullopt;
  if (one_part_ && *config_.signal_led) return OnePart();
  if (auto early = TooEarly()) return early;
  return Refusal(prefix);
}

std::optional<Monitoring> AutoPolicy::monitoring() const {
  if (!*config_.second_opinion || frozen_prefix_ == shape_.modules - 1 || IsOver()) return std::nullopt;
  const std::optional<int64_t> start = clock_.start();
  if (!start) return std::nullopt;
  const int64_t lead = std::max(Lead(), *clock_.period());
  if (step_ < *start - lead || !MayFreezeWithin(lead)) return std::nullopt;
  const int64_t interval = std::max(kMinTrendInterval, *clock_.period() / kTrendReadingsPerPeriod);
  return Monitoring{frozen_prefix_, static_cast<int>(std::min(interval, kMaxInterval)), config_.batch_size,
                    kTrendWindow, /*required=*/false};
}

int AutoPolicy::Interval() const {
  if (config_.interval_steps > 0) return config_.interval_steps;
  return GradientInterval(clock_.period().value_or(0), shape_);
}

int AutoPolicy::EarlyInterval() const {
  return static_cast<int>(std::min(StepsOfPart(kEarlyReadings, static_cast<double>(shape_.total_steps)), kMaxInterval));
}

int AutoPolicy::ProbeInterval() const {
  // The sooner it ends, the shorter a bad freeze lasts; of one rank, a reading takes a backward pass of its own.
  return shape_.ranks == 1 ? Interval() : 1;
}

int64_t AutoPolicy::Lead() const {
  return GradientLead(Interval(), config_.readings, config_.least_readings, clock_.period().value_or(0));
}

bool AutoPolicy::MayFreezeWithin(int64_t steps) const {
  if (*config_.signal_led || shape_.total_steps == 0) return true;
  return !TooMuchLeft(std::min(step_ + steps, shape_.total_steps - 1));
}

int64_t AutoPolicy::StepsToNextProbe(int readings) const {
  const double period = static_cast<double>(clock_.period().value_or(kPeriodOfUnknownTotal));
  return std::max(StepsOfPart(config_.reprobe_every / config_.every, period),
                  kStepsPerProbeReading * std::max(config_.least_readings, readings));
}

std::optional<GradientMonitoring> AutoPolicy::gradient_monitoring() const {
  if (probe_.running()) return GradientMonitoring{ProbeInterval(), 0};
  if (frozen_prefix_ == shape_.modules - 1 || IsOver()) return std::nullopt;
  const std::optional<int64_t> next = clock_.next();
  if (!next || step_ < *next - Lead() || !MayFreezeWithin(Lead())) {
    if (!ReadsForEarly()) return std::nullopt;
    return GradientMonitoring{EarlyInterval(), frozen_prefix_};
  }
  return GradientMonitoring{Interval(), frozen_prefix_};
}

PolicyStatus AutoPolicy::status() const {
  PolicyStatus status = EmptyStatus(shape_.modules);
  for (int module = 0; module < shape_.modules; ++module) {
    status.modules[static_cast<size_t>(module)].snr = gate_.OfModule(module);
  }
  ModuleStatus& frontmost = status.modules[static_cast<size_t>(frozen_prefix_)];
  frontmost.plasticity = trend_.newest();
  frontmost.readings = trend_.readings();
  status.blocked = blocked();
  return status;
}

std::string AutoPolicy::blocked() const {
  if (frozen_prefix_ == shape_.modules - 1) return "";
  if (!*config_.signal_led) {
    if (!clock_.start() || step_ < *clock_.start()) return "";
    const std::optional<std::string> left = TooMuchLeft(step_);
    return left ? absl::StrCat("[RATES_STAY_HIGH] ", *left) : "";
  }
  if (one_part_) return OnePart();
  const std::optional<int64_t> next = clock_.next();
  if (!next || step_ < *next + *clock_.period() || ToldForCheck()) return "";
  return absl::StrCat("[NO_GRADIENTS] a check is due since step ", *next,
                      ", but the workers tell of no gradients; see their logs");
}

Decision AutoPolicy::Freeze(int prefix, std::string reason) {
  SetPrefix(prefix);
  return {step_, Action::kFreeze, prefix, std::move(reason)};
}

Decision AutoPolicy::Unfreeze(int prefix, std::string reason) {
  SetPrefix(prefix);
  probe_.Stop();
  next_probe_ = step_ + StepsToNextProbe(0);
  return {step_, Action::kUnfreeze, prefix, std::move(reason)};
}

void AutoPolicy::SetPrefix(int prefix) {
  if (frozen_prefix_ == 0) next_probe_ = step_ + StepsToNextProbe(0);
  for (int module = std::min(frozen_prefix_, prefix); module < shape_.modules; ++module) {
    rate_at_freeze_[static_cast<size_t>(module)] = module < prefix ? rates_.newest() : std::nullopt;
  }
  frozen_prefix_ = prefix;
  frozen_before_ = false;
  early_.Limit(prefix, Left(step_));
  early_.Forget();
  trend_.Forget();
}

void AutoPolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < shape_.modules);
  const bool unfrozen = frozen_prefix < frozen_prefix_;
  const bool unjudged = step < step_ || frozen_prefix > frozen_prefix_;
  if (step < step_) {  // training goes on from an older step
    clock_.GoBack(step);
    rates_.Forget();
    gate_.Forget();
    readings_from_ = newest_reading_ = -1;
    unasked_until_ = step;
    zero_lr_prefix_ = 0;
    fell_at_once_ = false;
  }
  // What somebody unfroze does not go again at once.
  next_early_ = step + (unfrozen ? config_.most_backoff * clock_.period().value_or(0) : 0);
  step_ = step;
  SetPrefix(frozen_prefix);
  frozen_before_ = frozen_prefix > 0 && step_ <= shape_.first_step;
  probe_.Stop();
  if (unjudged) next_probe_ = step_;
  if (unfrozen && clock_.start()) clock_.Refused(step_);
}

}  // namespace egeria::policy
