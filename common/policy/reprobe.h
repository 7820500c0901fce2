#ifndef EGERIA_COMMON_POLICY_REPROBE_H_
#define EGERIA_COMMON_POLICY_REPROBE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/snr_gate.h"

namespace egeria::policy {

// Looks again, now and then, at the gradients of modules that are frozen. A probe takes `least_readings` fresh readings
// of all modules from the first on, and judges by them; while their pooled estimate is over the threshold, but not
// clearly, it takes twice, four times, ... as many, up to `readings`. One that finds a module over its threshold is
// repeated at once, once, and a module that two probes in a row have found is not to stay frozen. A single judgement
// finds a module at the threshold by chance every twentieth time. Thread-compatible.
class Reprobe {
 public:
  // Where it lies on the freeze, which should not be there, the first judgement ends it unless all of it surely is
  // noise, as far as readings of all of it tell.
  enum class Burden { kOnSignal, kOnFreeze };

  struct Finding {
    int prefix;                 // modules that may stay frozen
    std::optional<int> learns;  // the first one that was found; empty: the freeze did not justify itself
  };

  // Readings before the probe are of no account, so `gate` is its own; it keeps `readings` and estimates from
  // `least_readings` on.
  Reprobe(SnrGate gate, int modules, int least_readings, int readings);

  // A probe begins: at `step` or the first reading after it.
  void Begin(int64_t step);
  // Nothing is frozen, or what was measured so far says nothing of now.
  void Stop();
  // What the probes found so far is void, but a probe that is under way goes on with fresh readings.
  void Restart(int64_t step);
  // As SnrGate::Ease().
  void Ease(double factor) { gate_.Ease(factor); }

  bool running() const { return running_; }
  // The step of the newest reading of the probe that is running; where there is none, the one at which it began.
  int64_t newest_step() const { return newest_step_; }
  // Readings that the probe under way, or the last one, has taken, with its repetition.
  int readings() const { return all_readings_; }

  // Takes in a reading while running. Once the probe has ended, what it found among modules 0..frozen-1, if anything.
  // The first `exempt` modules are never found.
  std::optional<Finding> Observe(const GradientReading& reading, int frozen, int exempt, Burden burden);

  // "0.09 (0.06..0.12)" of all that was probed last.
  std::string Describe(int frozen, int exempt) const { return gate_.Describe(frozen, exempt); }

 private:
  void Collect(int64_t step);

  SnrGate gate_;
  const int least_readings_;
  const int most_readings_;
  bool running_ = false;
  bool repeated_ = false;
  int64_t from_step_ = 0;  // readings of this step and before are not of this probe
  int64_t newest_step_ = 0;
  int readings_ = 0;   // since the probe began, or its repetition
  int next_look_ = 0;  // readings after which it is judged
  int all_readings_ = 0;
  std::vector<int> found_;  // probes in a row that found each module over its threshold
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_REPROBE_H_
