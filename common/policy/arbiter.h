#ifndef EGERIA_COMMON_POLICY_ARBITER_H_
#define EGERIA_COMMON_POLICY_ARBITER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "common/policy/rules/check_clock.h"
#include "common/policy/rules/proposal.h"
#include "common/policy/rules/rate_changes.h"
#include "common/policy/rules/rate_rise.h"
#include "common/policy/rules/reprobe.h"
#include "common/policy/rules/snr_gate.h"
#include "common/policy/rules/zero_lr_prefix.h"

namespace egeria::policy {

// What the policies "auto" and "snr" have in common: they check now and then what may freeze, by gradient readings that
// they ask for some time before. Around these checks the arbiter lets the rules speak in a fixed order: the modules
// without a learning rate, those that a risen rate unfreezes, a probe of what somebody else froze, and then the
// policy's own check. The first rule with a proposal ends an observation. Numbers that cannot be are as if not
// observed.
//
// A probe begins right after an operator or a checkpoint has frozen more, and comes again now and then. Before the
// policy's own time such a freeze has to justify itself. Where nothing is heard of a probe, the workers cannot look at
// what is frozen, and no other follows. Thread-compatible.
class Arbiter : public Policy {
 public:
  std::optional<Decision> Observe(const Observation& observation) final;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const final { return frozen_prefix_; }
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  std::optional<std::string> Objection(int prefix) const override;
  PolicyStatus status() const final;

 protected:
  // `start` is the part of the steps from which on checks come. Config: AutoConfig or SnrConfig, resolved.
  template <typename Config>
  Arbiter(const Config& config, double start, const JobShape& shape)
      : Arbiter({config.every, config.threshold, config.late_threshold, config.reprobe_every, config.unfreeze_rise,
                 config.interval_steps, config.readings, config.min_readings},
                start, shape) {}

  // Checks what may freeze now, if a check is due.
  virtual std::optional<Decision> Check() = 0;
  // Why it is too early for any freeze at this step; empty where it is not.
  virtual std::optional<std::string> TooEarly() const = 0;
  // Why the signals speak against freezing modules 0..prefix-1, whatever the step; empty where they do not.
  virtual std::optional<std::string> Refusal(int prefix) const = 0;

  // By how much the thresholds of the gradients' signal are to be multiplied now.
  virtual double ThresholdFactor() const { return 1; }
  // The learning rate was observed. `changed` says that readings of before say nothing of now; `fell`, that it has
  // fallen.
  virtual void OnRate(double /*rate*/, bool /*changed*/, bool /*fell*/) {}
  // A reading that counts has come.
  virtual void OnReading(const GradientReading& /*reading*/) {}
  // Modules 0..prefix-1 are frozen from now on.
  virtual void OnPrefix(int /*prefix*/) {}
  // Front modules that need not be noise to stay frozen.
  virtual int Exempt() const { return zero_lr_.prefix(); }
  // Whether the policy would have frozen what a probe finds unjustified, and makes it its own.
  virtual bool Excuses() { return false; }

  Decision Freeze(int prefix, std::string reason) { return Go({prefix, std::move(reason)}); }

  // Steps between gradient readings, and how long before a check they begin.
  int Interval() const;
  int64_t Lead() const;
  // Whether gradients were told for the next check, whose step is known.
  bool ToldForCheck() const;
  bool AllFrozen() const { return frozen_prefix_ == shape_.modules - 1; }
  // Whether all planned steps are done, so that nothing is left to save.
  bool IsOver() const { return shape_.total_steps > 0 && step_ >= shape_.total_steps; }

  int64_t step() const { return step_; }
  const JobShape& shape() const { return shape_; }
  const SnrGate& gate() const { return gate_; }
  const Reprobe& probe() const { return probe_; }
  int zero_lr_prefix() const { return zero_lr_.prefix(); }
  // Whether the newest gradients came in one part, of which noise cannot be told.
  bool one_part() const { return one_part_; }
  CheckClock& clock() { return clock_; }
  const CheckClock& clock() const { return clock_; }

 private:
  struct Constants {
    double every, threshold, late_threshold, reprobe_every, unfreeze_rise;
    int interval_steps, readings, min_readings;
  };

  Arbiter(const Constants& constants, double start, const JobShape& shape);

  std::optional<Decision> ObserveRate(double rate);
  std::optional<Decision> ObserveGradients(const GradientReading& reading);
  std::optional<Decision> JudgeForcedFreeze(const Reprobe::Finding& finding);
  void BeginProbeIfDue();
  void EndProbeWithoutReadings();
  int ProbeInterval() const;
  // Steps until the next probe, after one of so many readings.
  int64_t StepsToNextProbe(int readings) const;
  Decision Go(Proposal proposal);
  void SetPrefix(int prefix);

  const Constants constants_;
  const JobShape shape_;
  CheckClock clock_;
  RateChanges rates_;
  ZeroLrPrefix zero_lr_;
  RateRise rate_rise_;
  SnrGate gate_;
  Reprobe probe_;
  int64_t step_ = 0;  // newest
  int frozen_prefix_ = 0;
  int forced_prefix_ = 0;  // front modules that somebody else froze
  int64_t next_probe_ = 0;
  bool one_part_ = false;
  int64_t readings_from_ = -1;   // gradients of this step and before say nothing of now
  int64_t newest_reading_ = -1;  // step of the newest gradients
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_ARBITER_H_
