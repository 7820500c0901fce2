#ifndef EGERIA_COMMON_POLICY_RULES_SNR_GATE_H_
#define EGERIA_COMMON_POLICY_RULES_SNR_GATE_H_

#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/rules/snr.h"

namespace egeria::policy {

// This gate says whether modules may freeze by the signal-to-noise ratio of their gradients: what is mostly noise has
// little more to learn. A module's threshold is `threshold`, or `late_threshold` where it begins in the last third of
// the time, both stated at a batch of 64 samples and brought to the job's. Thread-compatible.
class SnrGate {
 public:
  // Keeps the last `readings` of each module; an estimate counts from `min_readings` on. `shares` are the modules'
  // parts of a step's time, at least two.
  SnrGate(double threshold, double late_threshold, int readings, int min_readings, std::vector<double> shares);

  // Returns whether the reading was taken in.
  bool Add(const GradientReading& reading) { return estimator_.Add(reading); }
  void Forget() { estimator_.Forget(); }
  // Multiplies the thresholds that were given by `factor` >= 1 from now on, but raises none over .9 by that.
  void ScaleThresholds(double factor) { factor_ = factor; }

  // Says whether the module has as many readings as an estimate needs.
  bool HasEstimate(int module) const { return estimator_.readings(module) >= min_readings_; }
  // Returns the status with the estimate and the threshold of each module.
  PolicyStatus With(PolicyStatus status) const;

  // Says why modules 0..prefix-1 should not all be frozen, of which 0..frozen-1 already are. A new one has no estimate,
  // a module's lower end is over its threshold, or the pooled estimate's upper end is not under the last module's
  // threshold. Empty where they may freeze. The first `exempt` modules do not count.
  std::optional<std::string> Refusal(int frozen, int prefix, int exempt) const;

  // Says the same where doubt is no reason: a lower end, of one of the new modules or of all of them together, is over
  // the threshold.
  std::optional<std::string> ClearSignal(int frozen, int prefix, int exempt = 0) const;

  // Returns "0.012 (0.004..0.031)" for the modules together; empty where there is no estimate.
  std::string Describe(int prefix, int exempt) const;

 private:
  // An estimate and the threshold that it is compared with.
  struct Judged {
    SnrEstimate snr;
    double threshold = 0;

    bool IsOver() const { return snr.lower > threshold; }  // clearly
    std::string Text() const;                              // "0.012 (0.004..0.031)"
  };

  // Judges modules first..end-1 together by the threshold of the last one; empty where there is no estimate.
  std::optional<Judged> Judge(int first, int end, int exempt) const;
  // Says that one module's lower end is over its threshold; empty where it is not.
  std::optional<std::string> SignalOf(int module, int exempt) const;
  double ThresholdOf(int module, double samples) const;

  const int min_readings_;
  std::vector<double> thresholds_;  // at 64 samples
  double factor_ = 1;
  SnrEstimator estimator_;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_SNR_GATE_H_
