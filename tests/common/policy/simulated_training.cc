#include "tests/common/policy/simulated_training.h"

#include <cmath>
#include <utility>

namespace egeria::policy {

GradientReading SimulatedGradients::Reading(int64_t step, int first_module, const std::vector<double>& snrs,
                                            int64_t samples) {
  GradientReading reading;
  reading.step = step;
  reading.first_module = first_module;
  reading.parts = parts_;
  reading.samples = samples;
  for (const double snr : snrs) {
    // With ||m||^2 = SNR the full batch's noise is 1 - SNR in all, and a part's noise `parts` times as much.
    const double deviation = std::sqrt(parts_ * (1 - snr) / dimensions_);
    std::vector<double> mean(static_cast<size_t>(dimensions_));
    double squares = 0, square_of_mean = 0;
    for (int part = 0; part < parts_; ++part) {
      for (size_t i = 0; i < mean.size(); ++i) {
        const double gradient = (i == 0 ? std::sqrt(snr) : 0) + deviation * normal_(random_);
        squares += gradient * gradient / parts_;
        mean[i] += gradient / parts_;
      }
    }
    for (const double value : mean) square_of_mean += value * value;
    reading.mean_of_squares.push_back(squares);
    reading.square_of_mean.push_back(square_of_mean);
  }
  return reading;
}

std::vector<Decision> SimulatedTraining::Run(Policy& policy, int64_t from) {
  SimulatedGradients gradients(seed, parts, dimensions);
  std::vector<Decision> decisions;
  const auto observe = [&](Observation observation) {
    observation.learning_rate = rate(observation.step);
    if (zero_lr_prefix) observation.zero_lr_prefix = zero_lr_prefix(observation.step);
    observations.push_back(observation);
    if (auto decision = policy.Observe(observation)) decisions.push_back(*std::move(decision));
  };
  for (int64_t step = from + 1; step <= steps; ++step) {
    if (meddle) meddle(step, policy);
    const auto wanted = policy.gradient_monitoring();
    if (snr && wanted && step % wanted->interval_steps == 0) {
      std::vector<double> snrs;
      for (int module = wanted->first_module; module < shape.modules; ++module) snrs.push_back(snr(module, step));
      ++gradient_readings;
      GradientReading reading = gradients.Reading(step, wanted->first_module, snrs, samples);
      for (int module = wanted->first_module; progress && module < shape.modules; ++module) {
        reading.progress.push_back(progress(module, step));
      }
      observe({.step = step, .gradients = std::move(reading)});
    }
    const auto monitoring = policy.monitoring();
    if (plasticity && monitoring && step % monitoring->interval_steps == 0) {
      observe({.step = step, .module = monitoring->module, .plasticity = plasticity(monitoring->module, step)});
    }
    if (step % tick == 0) observe({.step = step});
  }
  return decisions;
}

SimulatedTraining TrainingOf(double snr, int64_t total_steps) {
  SimulatedTraining training;
  training.shape.modules = kModules;
  training.shape.total_steps = training.steps = total_steps;
  training.shape.ranks = 2;
  training.tick = 4;
  training.snr = [snr](int, int64_t) { return snr; };
  return training;
}

std::optional<Decision> DecisionAt(Policy& policy, int64_t step) {
  Observation observation;
  observation.step = step;
  return policy.Observe(observation);
}

double Cosine(int64_t step, int64_t total_steps) {
  return 0.05 * (1 + std::cos(3.14159265358979 * static_cast<double>(step) / static_cast<double>(total_steps)));
}

}  // namespace egeria::policy
