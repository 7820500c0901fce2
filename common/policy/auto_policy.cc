#include "common/policy/auto_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// Before the start gradients are read at every hundredth of the steps, from so many readings before the first possible
// freeze on. In a shorter training they would be so dense that they cost more than what they might find saves.
constexpr double kEarlyReadings = 0.01;
constexpr int64_t kEarlyLead = 30;
constexpr int64_t kMinStepsOfEarlyReadings = 2'000;
// With one rank the training must be so many times as long: a hundred readings are then 1 % of the time at most.
constexpr int64_t kFactorOfOneRank = 10;
constexpr int64_t kMaxInterval = 100'000;

// A signal is worth the less the less of the learning rate is left to follow it with: thresholds hold while this part
// of the area is to come, and rise as it shrinks.
constexpr double kAreaOfThresholds = 0.01;
constexpr double kMinArea = 1e-6;

// What somebody unfroze does not freeze early again at once.
constexpr int64_t kPeriodsAfterUnfreeze = 2;

}  // namespace

AutoPolicy::AutoPolicy(const AutoConfig& config, const JobShape& shape)
    : AutoPolicy(config, shape, LateClock(config.lr_area_left, shape)) {}

AutoPolicy::AutoPolicy(const AutoConfig& config, const JobShape& shape, const LateClock& late)
    : Arbiter(config, late.StartOf(config.start), shape),
      config_(config),
      late_(late),
      early_(config.early_share, config.lr_area_left, shape),
      unasked_until_(shape.first_step) {}

double AutoPolicy::ThresholdFactor() const {
  return std::max(1.0, kAreaOfThresholds / std::max(kMinArea, late_.Left(step())));
}

void AutoPolicy::OnRate(double rate, bool changed, bool fell) {
  late_.ObserveRate(step(), rate);
  if (changed) early_.OnRateChange(fell);
}

void AutoPolicy::OnReading(const GradientReading& reading) {
  if (probe().running()) {
    early_.AddToProbe(reading, probe().began());
  } else if (reading.first_module == frozen_prefix()) {
    early_.Add(reading);
  }
}

void AutoPolicy::OnPrefix(int prefix) {
  frozen_before_ = false;
  early_.OnPrefix(prefix);
}

int AutoPolicy::Exempt() const { return std::max(zero_lr_prefix(), early_.prefix()); }

bool AutoPolicy::Excuses() {
  if (!early_.IsTime(step(), late_.MeanRateToCome(step()))) return false;
  auto justified = early_.Justified(frozen_prefix(), late_.Left(step()));
  if (!justified) return false;
  if (frozen_before_) {  // it has given up more than what is left now: at most what was left when it could freeze first
    justified->given_up = std::min(config_.lr_area_left, justified->missed * late_.Left(early_.first_step()));
  }
  early_.Book(*justified);
  return true;
}

int AutoPolicy::MaxPrefix() const { return std::min(frozen_prefix() + config_.max_modules, shape().modules - 1); }

std::optional<Decision> AutoPolicy::Check() {
  if (auto decision = CheckEarly()) return decision;
  return CheckLate();
}

std::optional<Decision> AutoPolicy::CheckEarly() {
  if (step() < next_early_ || probe().running() || !MayFreezeEarlyWithin(0)) return std::nullopt;
  const auto found = early_.Look(frozen_prefix(), MaxPrefix(), late_.Left(step()));
  next_early_ = step() + *clock().period();
  if (!found) return std::nullopt;
  early_.Book(*found);
  return Freeze(found->prefix, found->reason);
}

std::optional<Decision> AutoPolicy::CheckLate() {
  if (!clock().IsDue(step()) || AllFrozen() || IsOver()) return std::nullopt;
  if (TooMuchLeft(step())) {
    unasked_until_ = step();
    clock().MoveOn(step());
    return std::nullopt;
  }
  if (AwaitsReadings()) return std::nullopt;
  clock().MoveOn(step());
  for (int prefix = MaxPrefix(); prefix > frozen_prefix(); --prefix) {
    if (!Refusal(prefix)) return Freeze(prefix, ReasonFor(prefix));
  }
  return std::nullopt;
}

bool AutoPolicy::AwaitsReadings() const {
  if (one_part() || gate().HasEstimate(frozen_prefix())) return false;
  // Where the rates have just fallen, or the job has just begun or gone back, nobody was asked before.
  if (unasked_until_ > 0 && step() < unasked_until_ + 2 * *clock().period()) return true;
  return ToldForCheck() && step() < *clock().next() + *clock().period();
}

std::optional<std::string> AutoPolicy::TooEarly() const {
  if (auto early = clock().TooEarly(step())) return early;
  return TooMuchLeft(step());
}

std::optional<std::string> AutoPolicy::Refusal(int prefix) const {
  return gate().ClearSignal(frozen_prefix(), prefix, zero_lr_prefix());
}

std::string AutoPolicy::ReasonFor(int prefix) const {
  const std::string snr = gate().Describe(prefix, zero_lr_prefix());
  return absl::StrCat(
      "step ", step(), " of ", shape().total_steps,
      late_.KnowsLeft(step())
          ? absl::StrFormat(", %.3g %% of the area under the learning rates to come", 100 * late_.Left(step()))
          : "",
      snr.empty() ? "" : absl::StrFormat("; modules 0 to %d: gradient SNR %s", prefix - 1, snr));
}

bool AutoPolicy::MayFreezeEarlyWithin(int64_t steps) const {
  if (step() >= *clock().start()) return false;
  const int64_t then = std::min(step() + steps, shape().total_steps - 1);
  return early_.IsTime(then, late_.MeanRateToCome(then));
}

int AutoPolicy::EarlyInterval() const {
  return static_cast<int>(
      std::min(StepsOfPart(kEarlyReadings, static_cast<double>(shape().total_steps)), kMaxInterval));
}

bool AutoPolicy::ReadsForEarly() const {
  const int64_t min_steps = kMinStepsOfEarlyReadings * (shape().ranks == 1 ? kFactorOfOneRank : 1);
  return !one_part() && shape().total_steps >= min_steps && MayFreezeEarlyWithin(kEarlyLead * EarlyInterval());
}

std::optional<GradientMonitoring> AutoPolicy::gradient_monitoring() const {
  const std::optional<GradientMonitoring> wanted = Arbiter::gradient_monitoring();
  if (wanted && (probe().running() || !TooMuchLeft(std::min(step() + Lead(), shape().total_steps - 1)))) return wanted;
  if (AllFrozen() || IsOver() || !ReadsForEarly()) return std::nullopt;
  return GradientMonitoring{EarlyInterval(), frozen_prefix()};
}

std::string AutoPolicy::blocked() const {
  if (AllFrozen() || step() < *clock().start()) return "";
  const std::optional<std::string> left = TooMuchLeft(step());
  return left ? absl::StrCat("[RATES_STAY_HIGH] ", *left) : "";
}

void AutoPolicy::Adopt(int64_t adopted_step, int prefix) {
  if (adopted_step < step()) {
    unasked_until_ = adopted_step;
    early_.GoBack();
  }
  next_early_ = adopted_step + (prefix < frozen_prefix() ? kPeriodsAfterUnfreeze * *clock().period() : 0);
  Arbiter::Adopt(adopted_step, prefix);
  frozen_before_ = prefix > 0 && adopted_step <= shape().first_step;
}

}  // namespace egeria::policy
