#ifndef EGERIA_COMMON_POLICY_ARBITER_H_
#define EGERIA_COMMON_POLICY_ARBITER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"
#include "common/policy/rules/check_clock.h"
#include "common/policy/rules/rate_changes.h"
#include "common/policy/rules/rate_rise.h"
#include "common/policy/rules/snr_gate.h"
#include "common/policy/rules/zero_lr_prefix.h"

namespace egeria::policy {

// An arbiter is what the policies "auto" and "snr" have in common: they check now and then what may freeze, by gradient
// readings that they ask for some time before. Around these checks the arbiter lets the rules speak in a fixed order.
// The modules without a learning rate come first, those that a risen rate unfreezes second, and the policy's own check
// last. The first rule with a proposal ends an observation. Numbers that cannot be are as if not observed. Frozen
// modules have no gradients to judge them by, and stay as somebody else has frozen them. Thread-compatible.
class Arbiter : public PrefixPolicy {
 public:
  std::optional<Decision> Observe(const Observation& observation) final;
  void Adopt(int64_t to_step, int prefix) override;
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  std::optional<std::string> Objection(int prefix) const override;
  PolicyStatus status() const final { return gate_.With(PrefixPolicy::status()); }

 protected:
  // Requires a resolved config. `start` is the part of the steps from which on checks come.
  Arbiter(const ReadingsConfig& config, double start, const JobShape& shape);

  // Checks what may freeze now, if a check is due.
  virtual std::optional<Decision> Check() = 0;
  // Says why it is too early for any freeze at this step; empty where it is not.
  virtual std::optional<std::string> TooEarly() const = 0;
  // Says why the signals speak against freezing modules 0..prefix-1, whatever the step; empty where they do not.
  virtual std::optional<std::string> Refusal(int prefix) const = 0;

  // Returns the factor of the thresholds of the gradients' signal.
  virtual double ThresholdFactor() const { return 1; }
  // The learning rate was observed. `changed` says that readings of before say nothing of now; `fell`, that it has
  // fallen.
  virtual void OnRate(double /*rate*/, bool /*changed*/, bool /*fell*/) {}
  // A reading that counts has come.
  virtual void OnReading(const GradientReading& /*reading*/) {}
  // Modules 0..prefix-1 are frozen from now on.
  virtual void OnPrefix(int /*prefix*/) {}

  // Decides what a rule proposes.
  Decision Go(const Proposal& proposal);

  // Return the steps between gradient readings, and how long before a check they begin.
  int Interval() const;
  int64_t Lead() const;
  // Says whether gradients were told for the next check, whose step is known.
  bool ToldForCheck() const { return newest_reading_ >= 0 && newest_reading_ >= *clock_.next() - Lead(); }
  // Says whether all planned steps are done, so that nothing is left to save.
  bool IsOver() const { return shape_.total_steps > 0 && step() >= shape_.total_steps; }

  const JobShape& shape() const { return shape_; }
  const SnrGate& gate() const { return gate_; }
  int zero_lr_prefix() const { return zero_lr_.prefix(); }
  // Says whether the newest gradients came in one part, of which noise cannot be told.
  bool one_part() const { return one_part_; }
  CheckClock& clock() { return clock_; }
  const CheckClock& clock() const { return clock_; }

 private:
  std::optional<Decision> ObserveRate(double rate);
  void ObserveGradients(const GradientReading& reading);
  // The frozen prefix has been `before` until now.
  void NotePrefix(int before);

  const ReadingsConfig config_;
  const JobShape shape_;
  CheckClock clock_;
  RateChanges rates_;
  ZeroLrPrefix zero_lr_;
  RateRise rate_rise_;
  SnrGate gate_;
  bool one_part_ = false;
  int64_t readings_from_ = -1;   // gradients of this step and before say nothing of now
  int64_t newest_reading_ = -1;  // step of the newest gradients
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_ARBITER_H_
