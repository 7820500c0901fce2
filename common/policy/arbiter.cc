#include "common/policy/arbiter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kMaxMagnitude = 1e100;

bool IsUsable(const std::optional<double>& value) {
  return value && *value >= 0 && *value <= kMaxMagnitude;  // false for NaN
}

}  // namespace

Arbiter::Arbiter(const ReadingsConfig& config, double start, const JobShape& shape)
    : PrefixPolicy(shape.modules),
      config_(config),
      shape_(shape),
      clock_(start, config.every, shape.total_steps),
      zero_lr_(shape.modules),
      rate_rise_(config.unfreeze_rise, shape.modules),
      gate_(config.threshold, config.late_threshold, config.readings, config.min_readings, TimeSharesOf(shape)) {}

std::optional<Decision> Arbiter::Observe(const Observation& observation) {
  PassTo(observation.step);
  std::optional<Decision> by_rates;
  if (observation.zero_lr_prefix) {
    if (auto proposal = zero_lr_.Observe(*observation.zero_lr_prefix, frozen_prefix())) by_rates = Go(*proposal);
  }
  if (IsUsable(observation.learning_rate)) {
    if (auto unfreeze = ObserveRate(*observation.learning_rate)) by_rates = std::move(unfreeze);
  }
  if (by_rates) return by_rates;
  gate_.ScaleThresholds(ThresholdFactor());
  if (observation.gradients) ObserveGradients(*observation.gradients);
  return Check();
}

std::optional<Decision> Arbiter::ObserveRate(double rate) {
  const std::optional<double> before = rates_.newest();
  clock_.ObserveRate(step(), rate);
  const bool changed = rates_.Observe(step(), rate);
  if (changed) {
    gate_.Forget();
    clock_.StartOver(step());
    readings_from_ = step();
  }
  OnRate(rate, changed, changed && rate < *before);
  const auto proposal = rate_rise_.Observe(rate, frozen_prefix(), zero_lr_.prefix());
  return proposal ? std::optional<Decision>(Go(*proposal)) : std::nullopt;
}

void Arbiter::ObserveGradients(const GradientReading& reading) {
  newest_reading_ = std::max(newest_reading_, reading.step);
  one_part_ = reading.parts < 2;
  if (one_part_ || reading.step <= readings_from_) return;
  gate_.Add(reading);
  OnReading(reading);
}

std::optional<std::string> Arbiter::Objection(int prefix) const {
  if (prefix <= std::max(frozen_prefix(), zero_lr_.prefix())) return std::nullopt;
  if (auto early = TooEarly()) return early;
  return Refusal(prefix);
}

int Arbiter::Interval() const {
  if (config_.interval_steps > 0) return config_.interval_steps;
  return GradientInterval(clock_.period().value_or(0), shape_);
}

int64_t Arbiter::Lead() const {
  return GradientLead(Interval(), config_.readings, config_.min_readings, clock_.period().value_or(0));
}

std::optional<GradientMonitoring> Arbiter::gradient_monitoring() const {
  const std::optional<int64_t> next = clock_.next();
  if (AllFrozen() || IsOver() || !next || step() < *next - Lead()) return std::nullopt;
  return GradientMonitoring{Interval(), frozen_prefix()};
}

Decision Arbiter::Go(const Proposal& proposal) {
  const int before = frozen_prefix();
  Decision decision = Decide(proposal.prefix, proposal.reason);
  NotePrefix(before);
  return decision;
}

void Arbiter::NotePrefix(int before) {
  rate_rise_.OnPrefix(before, frozen_prefix(), rates_.newest());
  OnPrefix(frozen_prefix());
}

void Arbiter::Adopt(int64_t to_step, int prefix) {
  const int before = frozen_prefix();
  const bool goes_back = to_step < step();
  if (goes_back) {  // training goes on from an older step
    clock_.MoveOn(to_step);
    rates_.Forget();
    gate_.Forget();
    readings_from_ = newest_reading_ = -1;
    zero_lr_.Forget();
  }
  PrefixPolicy::Adopt(to_step, prefix);
  NotePrefix(before);
  if (prefix < before && clock_.start()) clock_.PutOff(to_step);
}

}  // namespace egeria::policy
