#ifndef EGERIA_COMMON_POLICY_AUTO_POLICY_H_
#define EGERIA_COMMON_POLICY_AUTO_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/check_clock.h"
#include "common/policy/early_freezes.h"
#include "common/policy/plasticity_trend.h"
#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "common/policy/rate_changes.h"
#include "common/policy/remaining_area.h"
#include "common/policy/reprobe.h"
#include "common/policy/snr_gate.h"

namespace egeria::policy {

// Freezes late: when most of the steps are done and next to nothing of the learning rate is left, all modules whose
// gradients do not clearly say more than noise; and before that, where rates fall smoothly, front modules that take
// time and learn next to nothing (early_freezes.h). Led by the signal, earlier, a few modules at a time and only those
// whose gradients surely are noise. What no learning rate changes is frozen at once. Looks again at what is frozen, and
// unfreezes it where that was wrong or the learning rate has risen. docs/policies.md has the rule in full.
//
// An observation is evaluated in the order learning rates, gradients (also of a re-probe), plasticity, early check,
// check. The first of them that leads to a decision ends it. Numbers that cannot be are as if not observed.
// Thread-compatible.
class AutoPolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  AutoPolicy(const AutoConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  std::optional<Monitoring> monitoring() const override;
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  std::optional<std::string> Objection(int prefix) const override;
  bool wants_loss() const override { return false; }
  std::string blocked() const override;
  PolicyStatus status() const override;

 private:
  std::optional<Decision> ObserveStill(int zero_lr_prefix);
  std::optional<Decision> ObserveRate(double rate);
  std::optional<Decision> ObserveGradients(const GradientReading& reading);
  std::optional<Decision> CheckEarly();
  std::optional<Decision> Check();
  void BeginProbeIfDue();
  // Workers that cannot look at what is frozen do not tell: a probe that hears nothing ends, and the next one comes
  // later.
  void EndProbeWithoutReadings();

  // Steps between gradient readings, those before the start, and those of a probe; how long before a check they begin.
  int Interval() const;
  int EarlyInterval() const;
  int ProbeInterval() const;
  int64_t Lead() const;
  // Whether, at the present rates, anything may freeze so many steps from now.
  bool MayFreezeWithin(int64_t steps) const;
  // Steps until the next probe, after one of so many readings.
  int64_t StepsToNextProbe(int readings) const;
  // Whether all planned steps are done, so that nothing is left to save.
  bool IsOver() const { return shape_.total_steps > 0 && step_ >= shape_.total_steps; }
  // Whether a check that is due had better wait for gradient readings.
  bool AwaitsReadings() const;
  // Whether gradients were told for the next check, whose step is known.
  bool ToldForCheck() const;
  // Why it is too early for any freeze: by steps, or by the learning rate.
  std::optional<std::string> TooEarly() const;
  // The same of a step that is late enough, or will be: by the planned rates, or the present one.
  std::optional<std::string> TooMuchLeft(int64_t step) const;
  // Whether something that learns next to nothing may be frozen at that step; so many steps from now, which is before
  // the start; and whether readings are to tell of it.
  bool LateEnoughForEarly(int64_t step) const;
  bool MayFreezeEarlyWithin(int64_t steps) const;
  bool ReadsForEarly() const;
  // The part of the area under the learning rates that comes after that step, all of it where that is unknown; and
  // their mean over that of the whole training's.
  double Left(int64_t step) const;
  double MeanRateToCome(int64_t step) const;
  // Why it is too early for any clock: the learning rates do not fall.
  std::optional<std::string> RatesStayHigh(int64_t step) const;
  // Why 0..prefix-1 should not be frozen by the signals alone, whatever the step.
  std::optional<std::string> Refusal(int prefix) const;
  std::string ReasonFor(int prefix) const;

  Decision Freeze(int prefix, std::string reason);
  Decision Unfreeze(int prefix, std::string reason);
  // Books a prefix that is in force from now on.
  void SetPrefix(int prefix);

  const AutoConfig config_;
  const JobShape shape_;
  RemainingArea area_;
  CheckClock clock_;
  RateChanges rates_;
  EarlyFreezes early_;
  int64_t next_early_ = 0;     // step of the next look at them
  bool fell_at_once_ = false;  // the rate, somewhere
  SnrGate gate_;
  Reprobe probe_;
  PlasticityTrend trend_;  // of the frontmost active module
  int64_t step_ = 0;       // newest
  int frozen_prefix_ = 0;
  bool one_part_ = false;        // the newest gradients came in one part
  int64_t readings_from_ = -1;   // gradients of this step and before say nothing of now
  int64_t newest_reading_ = -1;  // step of the newest gradients
  int64_t next_probe_ = 0;
  int unanswered_probes_ = 0;   // in a row
  int64_t unasked_until_ = 0;   // nobody was asked for gradients until this step, however near a check was
  bool frozen_before_ = false;  // what is frozen was so when the job began, from a checkpoint
  std::vector<std::optional<double>> rate_at_freeze_;  // of frozen modules, where it is known
  int zero_lr_prefix_ = 0;                             // the first ones, whose own learning rates are 0
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_AUTO_POLICY_H_
