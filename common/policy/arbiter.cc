#include "common/policy/arbiter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kMaxMagnitude = 1e100;
constexpr int64_t kPeriodOfUnknownTotal = 500;
// A reading of what is frozen costs about what freezing saves in a step. So probes are so far apart that at most one
// step in so many is theirs: in a short training they would take all that was saved.
constexpr int64_t kStepsPerProbeReading = 50;
// A probe without any reading in a period, and in so many reading intervals and steps, has none to expect.
constexpr int64_t kIntervalsOfSilence = 10;
constexpr int64_t kStepsOfSilence = 300;

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
      gate_(config.threshold, config.late_threshold, config.readings, config.min_readings, TimeSharesOf(shape)),
      probe_(gate_, shape.modules, config.min_readings, config.readings) {}

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
  probe_.ScaleThresholds(ThresholdFactor());
  if (observation.gradients) {
    if (auto decision = ObserveGradients(*observation.gradients)) return decision;
  }
  EndProbeWithoutReadings();
  BeginProbeIfDue();
  return Check();
}

std::optional<Decision> Arbiter::ObserveRate(double rate) {
  const std::optional<double> before = rates_.newest();
  clock_.ObserveRate(step(), rate);
  const bool changed = rates_.Observe(step(), rate);
  if (changed) {
    gate_.Forget();
    probe_.Restart(step());
    clock_.StartOver(step());
    readings_from_ = step();
  }
  OnRate(rate, changed, changed && rate < *before);
  const auto proposal = rate_rise_.Observe(rate, frozen_prefix(), zero_lr_.prefix());
  return proposal ? std::optional<Decision>(Go(*proposal)) : std::nullopt;
}

std::optional<Decision> Arbiter::ObserveGradients(const GradientReading& reading) {
  newest_reading_ = std::max(newest_reading_, reading.step);
  one_part_ = reading.parts < 2;
  if (one_part_) {
    probe_.Stop();
    next_probe_ = step() + StepsToNextProbe(0);
    return std::nullopt;
  }
  if (reading.step <= readings_from_) return std::nullopt;
  gate_.Add(reading);
  OnReading(reading);
  if (!probe_.running()) return std::nullopt;
  const auto finding =
      probe_.Observe(reading, forced_prefix_, Exempt(),
                     TooEarly() ? Reprobe::BurdenOfProof::kOnFreeze : Reprobe::BurdenOfProof::kOnSignal);
  if (probe_.running()) return std::nullopt;
  next_probe_ = step() + StepsToNextProbe(probe_.readings());
  return finding ? JudgeForcedFreeze(*finding) : std::nullopt;
}

std::optional<Decision> Arbiter::JudgeForcedFreeze(const Reprobe::Finding& finding) {
  if (!finding.learns && Excuses()) {
    forced_prefix_ = 0;
    return std::nullopt;
  }
  clock_.PutOff(step());
  const std::string snr = absl::StrFormat("gradient SNR of modules 0 to %d now %s", forced_prefix_ - 1,
                                          probe_.Describe(forced_prefix_, Exempt()));
  if (!finding.learns) {
    return Go({finding.prefix, absl::StrFormat("what is frozen is not surely noise (%s), and %s", snr, *TooEarly())});
  }
  return Go({finding.prefix,
             absl::StrFormat("two probes in a row of what is frozen found that module %d could learn still: %s",
                             *finding.learns, snr)});
}

void Arbiter::BeginProbeIfDue() {
  if (config_.reprobe_every == 0 || one_part_ || probe_.running() || step() < next_probe_) return;
  if (forced_prefix_ > zero_lr_.prefix()) probe_.Begin(step());
}

void Arbiter::EndProbeWithoutReadings() {
  if (!probe_.running()) return;
  const int64_t silence = std::max(
      {clock_.period().value_or(kPeriodOfUnknownTotal), kIntervalsOfSilence * ProbeInterval(), kStepsOfSilence});
  if (step() < probe_.newest_step() + silence) return;
  probe_.Stop();
  forced_prefix_ = 0;
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

int Arbiter::ProbeInterval() const {
  // The sooner a probe ends, the shorter a bad freeze lasts. With one rank a reading takes a backward pass of its own.
  return shape_.ranks == 1 ? Interval() : 1;
}

int64_t Arbiter::Lead() const {
  return GradientLead(Interval(), config_.readings, config_.min_readings, clock_.period().value_or(0));
}

int64_t Arbiter::StepsToNextProbe(int readings) const {
  const double period = static_cast<double>(clock_.period().value_or(kPeriodOfUnknownTotal));
  return std::max(StepsOfPart(config_.reprobe_every / config_.every, period),
                  kStepsPerProbeReading * std::max(config_.min_readings, readings));
}

std::optional<GradientMonitoring> Arbiter::gradient_monitoring() const {
  if (probe_.running()) return GradientMonitoring{ProbeInterval(), 0};
  const std::optional<int64_t> next = clock_.next();
  if (AllFrozen() || IsOver() || !next || step() < *next - Lead()) return std::nullopt;
  return GradientMonitoring{Interval(), frozen_prefix()};
}

Decision Arbiter::Go(const Proposal& proposal) {
  const int before = frozen_prefix();
  Decision decision = Decide(proposal.prefix, proposal.reason);
  NotePrefix(before);
  if (decision.action == Action::kUnfreeze) {
    probe_.Stop();
    next_probe_ = step() + StepsToNextProbe(0);
  }
  return decision;
}

void Arbiter::NotePrefix(int before) {
  rate_rise_.OnPrefix(before, frozen_prefix(), rates_.newest());
  forced_prefix_ = std::min(forced_prefix_, frozen_prefix());
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
  probe_.Stop();
  if (goes_back || prefix > before) {
    forced_prefix_ = prefix;
    next_probe_ = to_step;
  }
  if (prefix < before && clock_.start()) clock_.PutOff(to_step);
}

}  // namespace egeria::policy
