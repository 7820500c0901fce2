#include "common/policy/rules/snr_gate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kLateFrom = 2.0 / 3;  // of the time of all modules
constexpr double kMaxThreshold = 0.9;  // an SNR is at most 1

std::string Text(const SnrEstimate& snr) {
  return absl::StrFormat("%.3g (%.3g..%.3g)", snr.value, snr.lower, snr.upper);
}

}  // namespace

SnrGate::SnrGate(double threshold, double late_threshold, int readings, int min_readings, std::vector<double> shares)
    : min_readings_(min_readings), estimator_(static_cast<int>(shares.size()), readings) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  double before = 0;
  for (const double share : shares) {
    thresholds_.push_back(before >= kLateFrom * all * (1 - 1e-9) ? late_threshold : threshold);
    before += share;
  }
}

double SnrGate::ThresholdOf(int module, double samples) const {
  const double given = thresholds_[static_cast<size_t>(module)];
  return ThresholdAtBatch(std::max(given, std::min(kMaxThreshold, factor_ * given)), samples);
}

std::optional<SnrEstimate> SnrGate::OfModule(int module) const {
  const std::optional<PooledSnr> estimate = HasEstimate(module) ? estimator_.OfModule(module) : std::nullopt;
  return estimate ? std::optional<SnrEstimate>(estimate->snr) : std::nullopt;
}

std::optional<PooledSnr> SnrGate::PooledOf(int first, int end, int exempt) const {
  std::vector<int> modules;
  for (int module = std::max(first, exempt); module < end; ++module) {
    if (HasEstimate(module)) modules.push_back(module);
  }
  return estimator_.Pooled(modules);
}

std::optional<std::string> SnrGate::Refusal(int frozen, int prefix, int exempt) const {
  for (int module = exempt; module < prefix; ++module) {
    if (!HasEstimate(module)) {
      if (module < frozen) continue;
      return absl::StrFormat("module %d has %d gradient readings, of which %d make an estimate", module,
                             estimator_.readings(module), min_readings_);
    }
    const std::optional<PooledSnr> own = estimator_.OfModule(module);
    if (!own) continue;  // exactly zero
    const double threshold = ThresholdOf(module, own->samples);
    if (own->snr.lower > threshold) {
      return absl::StrFormat("module %d: gradient SNR %s at the job's batch is over %.3g", module, Text(own->snr),
                             threshold);
    }
  }
  const std::optional<PooledSnr> pooled = PooledOf(0, prefix, exempt);
  if (!pooled) return std::nullopt;
  const double threshold = ThresholdOf(prefix - 1, pooled->samples);
  if (pooled->snr.upper < threshold) return std::nullopt;
  return absl::StrFormat("modules 0 to %d: gradient SNR %s at the job's batch is not surely under %.3g", prefix - 1,
                         Text(pooled->snr), threshold);
}

std::optional<std::string> SnrGate::ClearSignal(int frozen, int prefix, int exempt) const {
  for (int module = frozen; module < prefix; ++module) {
    const std::optional<PooledSnr> own = PooledOf(module, module + 1, exempt);
    if (own && own->snr.lower > ThresholdOf(module, own->samples)) {
      return absl::StrFormat("module %d: gradient SNR %s at the job's batch is over %.3g", module, Text(own->snr),
                             ThresholdOf(module, own->samples));
    }
  }
  const std::optional<PooledSnr> pooled = PooledOf(frozen, prefix, exempt);
  if (!pooled || pooled->snr.lower <= ThresholdOf(prefix - 1, pooled->samples)) return std::nullopt;
  return absl::StrFormat("modules %d to %d: gradient SNR %s at the job's batch is over %.3g", frozen, prefix - 1,
                         Text(pooled->snr), ThresholdOf(prefix - 1, pooled->samples));
}

std::vector<int> SnrGate::OverThreshold(int prefix, int exempt) const {
  const std::optional<PooledSnr> pooled = PooledOf(0, prefix, exempt);
  const bool together = pooled && pooled->snr.lower > ThresholdOf(prefix - 1, pooled->samples);
  std::vector<int> over;
  for (int module = 0; module < prefix; ++module) {
    const std::optional<PooledSnr> own = PooledOf(module, module + 1, exempt);
    if (!own) continue;
    const double threshold = ThresholdOf(module, own->samples);
    if (own->snr.lower > threshold || (together && own->snr.value > threshold)) over.push_back(module);
  }
  return over;
}

bool SnrGate::EstimateIsOver(int prefix, int exempt) const {
  const std::optional<PooledSnr> pooled = PooledOf(0, prefix, exempt);
  return pooled && pooled->snr.value > ThresholdOf(prefix - 1, pooled->samples);
}

std::string SnrGate::Describe(int prefix, int exempt) const {
  const std::optional<PooledSnr> pooled = PooledOf(0, prefix, exempt);
  return pooled ? Text(pooled->snr) : "";
}

}  // namespace egeria::policy
