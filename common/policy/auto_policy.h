#ifndef EGERIA_COMMON_POLICY_AUTO_POLICY_H_
#define EGERIA_COMMON_POLICY_AUTO_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/policy/arbiter.h"
#include "common/policy/policy_config.h"
#include "common/policy/rules/early_prefix.h"
#include "common/policy/rules/late_clock.h"

namespace egeria::policy {

// Freezes late: when most of the steps are done and next to nothing of the learning rate is left (LateClock), all
// modules whose gradients do not clearly say more than noise (SnrGate as a veto). Before that it freezes, where rates
// fall smoothly, front modules that take time and learn next to nothing (EarlyPrefix). The arbiter adds what has no
// learning rate, what a risen rate unfreezes, and probes of what somebody else froze. docs/policies.md has the rule in
// full. Thread-compatible.
class AutoPolicy : public Arbiter {
 public:
  // Requires a resolved config and a shape that Resolve() takes, with a known total of steps.
  AutoPolicy(const AutoConfig& config, const JobShape& shape);

  void Adopt(int64_t step, int frozen_prefix) override;
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  std::string blocked() const override;

 protected:
  std::optional<Decision> Check() override;
  std::optional<std::string> TooEarly() const override;
  std::optional<std::string> Refusal(int prefix) const override;
  double ThresholdFactor() const override;
  void OnRate(double rate, bool changed, bool fell) override;
  void OnReading(const GradientReading& reading) override;
  void OnPrefix(int prefix) override;
  int Exempt() const override;
  bool Excuses() override;

 private:
  AutoPolicy(const AutoConfig& config, const JobShape& shape, const LateClock& late);

  std::optional<Decision> CheckEarly();
  std::optional<Decision> CheckLate();
  std::optional<std::string> TooMuchLeft(int64_t step) const { return late_.TooMuchLeft(step, early_.given_up()); }
  // Whether a check that is due had better wait for gradient readings.
  bool AwaitsReadings() const;
  // Whether something may freeze early so many steps from now, and whether readings are to tell of it.
  bool MayFreezeEarlyWithin(int64_t steps) const;
  bool ReadsForEarly() const;
  int EarlyInterval() const;
  int MaxPrefix() const;
  std::string ReasonFor(int prefix) const;

  const AutoConfig config_;
  LateClock late_;
  EarlyPrefix early_;
  int64_t next_early_ = 0;      // step of the next look at what may freeze early
  int64_t unasked_until_ = 0;   // nobody was asked for gradients until this step, however near a check was
  bool frozen_before_ = false;  // what is frozen was so when the job began, from a checkpoint
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_AUTO_POLICY_H_
