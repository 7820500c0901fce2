#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/policy/arbiter.h"
#include "common/policy/policy_config.h"
#include "common/policy/rules/early_prefix.h"
#include "common/policy/rules/late_clock.h"
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

// A training that ends where this part of the area is to come is as good as the whole one (docs/adr/0044). It is only
// said where that saves at least this part of the steps.
constexpr double kAreaOfAdvice = 0.0015;
constexpr double kMinStepsOfAdvice = 0.03;

// A module that somebody unfroze does not freeze early again at once.
constexpr int64_t kPeriodsAfterUnfreeze = 2;

// Advises to stop early where rates fall smoothly: what a late freeze saves can be had more cheaply (docs/adr/0044).
// Empty elsewhere.
std::string AdviceOn(const JobShape& shape) {
  if (!FallSmoothly(shape.planned_learning_rates)) return "";
  const int64_t total = shape.total_steps;
  const int64_t end = StepAtArea(1 - kAreaOfAdvice, shape.planned_learning_rates, total);
  const double saved = static_cast<double>(total - end) / static_cast<double>(total);
  if (saved < kMinStepsOfAdvice) return "";
  return absl::StrFormat(
      "[STOP_INSTEAD] the last %.0f %% of the steps have %.3g %% of the area under the learning rates; a training that "
      "ends after step %d is as good, and saves more than a late freeze",
      100 * saved, 100 * kAreaOfAdvice, end);
}

// This policy freezes late, when most of the steps are done and next to nothing of the learning rate is left
// (LateClock). Then it freezes all modules whose gradients do not clearly say more than noise (SnrGate as a veto).
// Before that it freezes, where rates fall smoothly, front modules that take time and learn next to nothing
// (EarlyPrefix). The arbiter adds what has no learning rate and what a risen rate unfreezes. docs/reference/policies.md
// has the rule in full. Requires a known total of steps. Thread-compatible.
class AutoPolicy : public Arbiter {
 public:
  AutoPolicy(const AutoConfig& config, const JobShape& shape)
      : AutoPolicy(config, shape, LateClock(config.lr_area_left, shape)) {}

  void Adopt(int64_t to_step, int prefix) override {
    if (to_step < step()) {
      unasked_until_ = to_step;
      early_.GoBack();
    }
    next_early_ = to_step + (prefix < frozen_prefix() ? kPeriodsAfterUnfreeze * *clock().period() : 0);
    Arbiter::Adopt(to_step, prefix);
    if (prefix > 0 && to_step <= shape().first_step && to_step < *clock().start()) {  // from a checkpoint
      early_.BookBefore(prefix, late_.Left(early_.first_step()));
    }
  }

  std::optional<GradientMonitoring> gradient_monitoring() const override {
    const std::optional<GradientMonitoring> wanted = Arbiter::gradient_monitoring();
    if (wanted && !TooMuchLeft(std::min(step() + Lead(), shape().total_steps - 1))) {
      return wanted;
    }
    if (AllFrozen() || IsOver() || !ReadsForEarly()) return std::nullopt;
    return GradientMonitoring{EarlyInterval(), frozen_prefix()};
  }

  std::string blocked() const override {
    if (AllFrozen()) return "";
    const bool too_early = step() < *clock().start();
    // Rates that are planned to stay high say from the beginning on that nothing is going to freeze.
    if (too_early && !(late_.is_planned() && TooMuchLeft(shape().total_steps - 1))) return "";
    const std::optional<std::string> left = TooMuchLeft(too_early ? *clock().start() : step());
    return left ? absl::StrCat("[RATES_STAY_HIGH] ", *left) : "";
  }

  std::string advice() const override { return advice_; }

 protected:
  std::optional<Decision> Check() override {
    if (auto decision = CheckEarly()) return decision;
    return CheckLate();
  }

  std::optional<std::string> TooEarly() const override {
    if (auto early = clock().TooEarly(step())) return early;
    return TooMuchLeft(step());
  }

  std::optional<std::string> Refusal(int prefix) const override {
    return gate().ClearSignal(frozen_prefix(), prefix, zero_lr_prefix());
  }

  double ThresholdFactor() const override {
    return std::max(1.0, kAreaOfThresholds / std::max(kMinArea, late_.Left(step())));
  }

  void OnRate(double rate, bool changed, bool fell) override {
    late_.ObserveRate(step(), rate);
    if (changed) early_.OnRateChange(fell);
  }

  void OnReading(const GradientReading& reading) override {
    if (reading.first_module == frozen_prefix()) early_.Add(reading);
  }

  void OnPrefix(int /*prefix*/) override { early_.OnPrefix(); }

 private:
  AutoPolicy(const AutoConfig& config, const JobShape& shape, const LateClock& late)
      : Arbiter(config, late.StartOf(config.start), shape),
        config_(config),
        late_(late),
        early_(config.early_share, config.lr_area_left, shape),
        advice_(AdviceOn(shape)),
        unasked_until_(shape.first_step) {}

  std::optional<Decision> CheckEarly() {
    if (step() < next_early_ || !MayFreezeEarlyWithin(0)) return std::nullopt;
    const auto found = early_.Look(frozen_prefix(), MaxPrefix(), late_.Left(step()));
    next_early_ = step() + *clock().period();
    if (!found) return std::nullopt;
    early_.Book(*found);
    return Go(*found);
  }

  std::optional<Decision> CheckLate() {
    if (!clock().IsDue(step()) || AllFrozen() || IsOver()) return std::nullopt;
    if (TooMuchLeft(step())) {
      unasked_until_ = step();
      clock().MoveOn(step());
      return std::nullopt;
    }
    if (AwaitsReadings()) return std::nullopt;
    clock().MoveOn(step());
    for (int prefix = MaxPrefix(); prefix > frozen_prefix(); --prefix) {
      if (!Refusal(prefix)) return Go({prefix, ReasonFor(prefix)});
    }
    return std::nullopt;
  }

  std::optional<std::string> TooMuchLeft(int64_t at_step) const {
    return late_.TooMuchLeft(at_step, early_.given_up());
  }

  // Says whether a check that is due had better wait for gradient readings.
  bool AwaitsReadings() const {
    if (one_part() || gate().HasEstimate(frozen_prefix())) return false;
    // Where the rates have just fallen, or the job has just begun or gone back, nobody was asked before.
    if (unasked_until_ > 0 && step() < unasked_until_ + 2 * *clock().period()) return true;
    return ToldForCheck() && step() < *clock().next() + *clock().period();
  }

  // Says whether something may freeze early so many steps from now.
  bool MayFreezeEarlyWithin(int64_t steps) const {
    if (step() >= *clock().start()) return false;
    const int64_t then = std::min(step() + steps, shape().total_steps - 1);
    return early_.IsTime(then, late_.MeanRateToCome(then));
  }

  // Says whether readings are to tell what may freeze early.
  bool ReadsForEarly() const {
    const int64_t min_steps = kMinStepsOfEarlyReadings * (shape().ranks == 1 ? kFactorOfOneRank : 1);
    return !one_part() && shape().total_steps >= min_steps && MayFreezeEarlyWithin(kEarlyLead * EarlyInterval());
  }

  int EarlyInterval() const {
    return static_cast<int>(
        std::min(StepsOfPart(kEarlyReadings, static_cast<double>(shape().total_steps)), kMaxInterval));
  }

  int MaxPrefix() const { return std::min(frozen_prefix() + config_.max_modules, modules() - 1); }

  std::string ReasonFor(int prefix) const {
    const std::string snr = gate().Describe(prefix, zero_lr_prefix());
    return absl::StrCat("step ", step(), " of ", shape().total_steps,
                        late_.After(step()) ? absl::StrFormat(", %.3g %% of the area under the learning rates to come",
                                                              100 * late_.Left(step()))
                                            : "",
                        snr.empty() ? "" : absl::StrFormat("; modules 0 to %d: gradient SNR %s", prefix - 1, snr));
  }

  const AutoConfig config_;
  LateClock late_;
  EarlyPrefix early_;
  const std::string advice_;
  int64_t next_early_ = 0;     // step of the next look at what may freeze early
  int64_t unasked_until_ = 0;  // nobody was asked for gradients until this step, however near a check was
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const AutoConfig& config, const JobShape& shape) {
  return std::make_unique<AutoPolicy>(config, shape);
}

}  // namespace egeria::policy
