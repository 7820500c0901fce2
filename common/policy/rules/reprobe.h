#ifndef EGERIA_COMMON_POLICY_RULES_REPROBE_H_
#define EGERIA_COMMON_POLICY_RULES_REPROBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/rules/snr_gate.h"

namespace egeria::policy {

// A reprobe looks at the gradients of modules that are frozen. A probe takes `min_readings` fresh readings of all
// modules from the first on, and judges by them. While their pooled estimate is over the threshold, but not clearly, it
// takes twice, four times and so on as many, up to `max_readings`. A probe that finds a module over its threshold is
// repeated at once, once. A module that two judgements in a row have found is not to stay frozen. A single one does not
// suffice: it finds a module at the threshold by chance every twentieth time. Thread-compatible.
class Reprobe {
 public:
  // The burden says who has to show something. On kOnSignal the freeze stands until a signal is found. On kOnFreeze,
  // where the freeze should not be there, the first judgement ends it unless all of it surely is noise, as far as
  // readings tell.
  enum class BurdenOfProof { kOnSignal, kOnFreeze };

  struct Finding {
    int prefix;                 // modules that may stay frozen
    std::optional<int> learns;  // the first module that was found; empty where the freeze did not justify itself
  };

  // Readings before a probe do not count, so the probe has a `gate` of its own, which keeps `max_readings` and
  // estimates from `min_readings` on.
  Reprobe(SnrGate gate, int modules, int min_readings, int max_readings);

  // A probe begins after `step`.
  void Begin(int64_t step);
  // Nothing is frozen, or what was measured so far says nothing of now.
  void Stop();
  // The findings of the probes so far are void, but a probe that is under way goes on with fresh readings after `step`.
  void Restart(int64_t step);
  // Does as SnrGate::ScaleThresholds().
  void ScaleThresholds(double factor) { gate_.ScaleThresholds(factor); }

  bool running() const { return running_; }
  // Returns the step at which the newest probe began, or began anew.
  int64_t began() const { return began_; }
  // Returns the step of the newest reading of the probe that is running; where there is none, the one at which it
  // began.
  int64_t newest_step() const { return newest_step_; }
  // Returns how many readings the newest probe has taken, with its repetition.
  int readings() const { return all_readings_; }

  // Takes in a reading while running. Returns, once the probe has ended, what it found among modules 0..frozen-1, if
  // anything. The first `exempt` modules do not count.
  std::optional<Finding> Observe(const GradientReading& reading, int frozen, int exempt, BurdenOfProof burden);

  // Returns "0.012 (0.004..0.031)" for modules exempt..frozen-1 by the newest probe; empty where there is no estimate.
  std::string Describe(int frozen, int exempt) const { return gate_.Describe(frozen, exempt); }

 private:
  void Collect(int64_t step);

  SnrGate gate_;
  const int min_readings_;
  const int max_readings_;
  bool running_ = false;
  bool repeated_ = false;
  int64_t began_ = 0;
  int64_t from_step_ = 0;  // readings of this step and before are not the probe's
  int64_t newest_step_ = 0;
  int readings_ = 0;   // since the probe or its repetition began
  int next_look_ = 0;  // readings after which it is judged
  int all_readings_ = 0;
  std::vector<int> found_;  // judgements in a row that found each module over its threshold
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_REPROBE_H_
