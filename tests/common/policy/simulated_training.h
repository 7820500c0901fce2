#ifndef EGERIA_TESTS_COMMON_POLICY_SIMULATED_TRAINING_H_
#define EGERIA_TESTS_COMMON_POLICY_SIMULATED_TRAINING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// These are gradients of modules as training might have them: g_p = m + noise in `dimensions` numbers, Gaussian, with
// the given SNR ||m||^2 / E||g||^2 at the full batch of `parts` parts. The same seed gives the same gradients.
class SimulatedGradients {
 public:
  SimulatedGradients(uint64_t seed, int parts, int dimensions = 60)
      : random_(seed), parts_(parts), dimensions_(dimensions) {}

  // Returns the reading of one step; snrs[i] belongs to module first_module + i.
  GradientReading Reading(int64_t step, int first_module, const std::vector<double>& snrs, int64_t samples = 64);

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  const int parts_;
  const int dimensions_;
};

// A simulated training plays its signals, functions of the step, to a policy.
struct SimulatedTraining {
  JobShape shape;
  std::function<double(int64_t step)> rate = [](int64_t) { return 0.1; };
  std::function<int(int64_t step)> zero_lr_prefix;             // empty: no module has the rate 0
  std::function<double(int module, int64_t step)> snr;         // empty: nobody tells of gradients
  std::function<double(int module, int64_t step)> progress;    // empty: workers do not tell
  std::function<double(int module, int64_t step)> plasticity;  // empty: no reference
  std::function<void(int64_t step, Policy& policy)> meddle;    // before the step is observed
  int parts = 2;
  int dimensions = 60;  // a module's gradients have so many: the more, the less the readings spread
  int64_t samples = 64;
  uint64_t seed = 1;
  int64_t steps = 1000;  // the last one to run
  int64_t tick = 1;      // steps between observations of nothing but the rate

  // Every observation that the runs gave, in order.
  std::vector<Observation> observations;
  int64_t gradient_readings = 0;

  // Runs steps from+1..steps and gives the policy what it asks for, as the controller would.
  std::vector<Decision> Run(Policy& policy, int64_t from = 0);
};

// Returns a training of two ranks that is told of every four steps, and whose modules, kModules of them, all have the
// same signal-to-noise ratio.
constexpr int kModules = 6;
SimulatedTraining TrainingOf(double snr, int64_t total_steps = 4000);

// Returns what a policy decides when it is told of a step and of nothing else.
std::optional<Decision> DecisionAt(Policy& policy, int64_t step);

// Returns the learning rate at a step of a cosine from 0.1 to 0.
double Cosine(int64_t step, int64_t total_steps);

}  // namespace egeria::policy

#endif  // EGERIA_TESTS_COMMON_POLICY_SIMULATED_TRAINING_H_
