#ifndef EGERIA_CONTROLLER_POLICY_REPROBE_H_
#define EGERIA_CONTROLLER_POLICY_REPROBE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "controller/policy/policy.h"
#include "controller/policy/snr_gate.h"

namespace egeria::policy {

// Looks again, now and then, at the gradients of modules that are frozen. A probe takes a fresh `readings` readings of
// all modules from the first on, and judges by them; one that finds a module over its threshold is repeated at once,
// once, and a module that two probes in a row have found is not to stay frozen. One probe finds a module at the
// threshold by chance every twentieth time, two every four hundredth. Thread-compatible.
class Reprobe {
 public:
  // Readings before the probe are of no account, so `gate` is its own, of `readings` readings.
  Reprobe(SnrGate gate, int modules, int readings);

  // A probe begins: at `step` or the first reading after it.
  void Begin(int64_t step);
  // Nothing is frozen, or what was measured so far says nothing of now.
  void Stop();
  // What the probes found so far is void, but a probe that is under way goes on with fresh readings.
  void Restart(int64_t step);

  bool running() const { return running_; }

  // Takes in a reading while running. Once the probe has ended, the first of modules 0..frozen-1 that two probes in a
  // row have found over its threshold. Modules that `exempt` marks are never found.
  std::optional<int> Observe(const GradientReading& reading, int frozen, const std::vector<bool>& exempt);

  // "0.09 (0.06..0.12)" of all that was probed last.
  std::string Describe(int frozen, const std::vector<bool>& exempt) const { return gate_.Describe(frozen, exempt); }

 private:
  void Collect(int64_t step);

  SnrGate gate_;
  const int readings_needed_;
  bool running_ = false;
  bool repeated_ = false;
  int64_t from_step_ = 0;       // readings of this step and before are not of this probe
  int readings_ = 0;
  std::vector<int> found_;      // probes in a row that found each module over its threshold
};

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_REPROBE_H_
