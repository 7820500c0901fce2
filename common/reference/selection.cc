#include "common/reference/selection.h"

#include <algorithm>
#include <utility>

namespace egeria::reference {

void BackendSelector::SetMeasurements(std::vector<BackendMeasurement> measurements) {
  measurements_ = std::move(measurements);
  signal_when_measured_ = MedianSignal();
}

void BackendSelector::UpdateNoise(const std::string& name, double noise) {
  for (BackendMeasurement& measurement : measurements_) {
    if (measurement.name == name) measurement.noise = std::max(noise, measurement.noise / 2);
  }
}

void BackendSelector::Refuse(const std::string& name, std::string reason) {
  for (BackendMeasurement& measurement : measurements_) {
    if (measurement.name == name) measurement.refusal = std::move(reason);
  }
}

void BackendSelector::AddReading(double plasticity) {
  readings_.push_back(plasticity);
  if (readings_.size() > options_.window) readings_.pop_front();
  if (!measurements_.empty() && !signal_when_measured_.has_value()) signal_when_measured_ = MedianSignal();
}

std::optional<double> BackendSelector::MedianSignal() const {
  if (readings_.size() < options_.min_readings) return std::nullopt;
  std::vector<double> sorted(readings_.begin(), readings_.end());
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  return sorted[sorted.size() / 2];
}

bool BackendSelector::NeedsMeasurement() const {
  if (measurements_.empty()) return true;
  const std::optional<double> signal = MedianSignal();
  return signal.has_value() && signal_when_measured_.has_value() &&
         *signal < options_.remeasure_at * *signal_when_measured_;
}

bool BackendSelector::IsQuietEnough(const BackendMeasurement& measurement) const {
  const std::optional<double> signal = MedianSignal();
  if (!signal.has_value()) return measurement.noise <= options_.exact_noise;
  return measurement.noise <= options_.max_noise_share * *signal;
}

std::string BackendSelector::Choose() const {
  if (measurements_.empty()) return "";
  const BackendMeasurement* best = &measurements_.back();
  for (const BackendMeasurement& measurement : measurements_) {
    if (!measurement.refusal.empty() || !IsQuietEnough(measurement)) continue;
    if (measurement.seconds < best->seconds) best = &measurement;
  }
  return best->name;
}

}  // namespace egeria::reference
