#include "common/policy/rules/snr.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr double kNormal95 = 1.6448536269514722;
constexpr double kBatchOfThresholds = 64;
// This bound keeps weights finite where readings are exactly alike, as simulated ones may be.
constexpr double kMinVariance = 1e-12;
constexpr double kMaxSquare = 1e200;
// After so many readings in a row of another number of parts, that is the job's number. An epoch's last step may have
// fewer micro-batches than the others.
constexpr int kReadingsOfAnotherNumber = 3;

bool IsSquare(double value) { return value >= 0 && value <= kMaxSquare; }  // false for NaN

}  // namespace

double ThresholdAtBatch(double at_64, double samples) {
  if (!(samples > 0)) return at_64;
  const double batches = samples / kBatchOfThresholds;
  return batches * at_64 / (1 + (batches - 1) * at_64);
}

double StudentQuantile95(int degrees) {
  EGERIA_CHECK(degrees >= 1);
  if (degrees == 1) return 6.3138;  // the expansion below needs more
  if (degrees == 2) return 2.9200;
  const double n = degrees, z = kNormal95, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

SnrEstimator::SnrEstimator(int modules, int window)
    : window_(static_cast<size_t>(window)), history_(static_cast<size_t>(modules)) {
  EGERIA_CHECK(modules >= 1 && window >= 2);
}

bool SnrEstimator::Add(const GradientReading& reading) {
  if (reading.parts < 2) return false;
  if (reading.parts != parts_) {
    if (parts_ != 0 && ++of_another_number_ < kReadingsOfAnotherNumber) return false;
    Forget();
    parts_ = reading.parts;
  }
  of_another_number_ = 0;
  const size_t values = std::min(reading.mean_of_squares.size(), reading.square_of_mean.size());
  for (size_t i = 0; i < values; ++i) {
    const size_t module = static_cast<size_t>(reading.first_module) + i;
    if (module >= history_.size()) break;
    const double square = reading.mean_of_squares[i], mean = reading.square_of_mean[i];
    if (!IsSquare(square) || !IsSquare(std::abs(mean))) continue;
    const double signal = (parts_ * mean - square) / (parts_ - 1);
    std::deque<Entry>& history = history_[module];
    history.push_back({reading.step, signal, square, reading.samples});
    if (history.size() > window_) history.pop_front();
  }
  return true;
}

void SnrEstimator::Forget() {
  for (std::deque<Entry>& history : history_) history.clear();
}

std::optional<SnrEstimator::Ratio> SnrEstimator::RatioOf(int module) const {
  const std::deque<Entry>& history = history_[static_cast<size_t>(module)];
  if (history.size() < 2) return std::nullopt;
  double signals = 0;
  Ratio ratio;
  for (const Entry& entry : history) {
    signals += entry.signal;
    ratio.squares += entry.square;
  }
  if (ratio.squares == 0) return std::nullopt;
  ratio.value = signals / ratio.squares;
  double errors = 0;
  for (const Entry& entry : history) {
    const double error = (entry.signal - ratio.value * entry.square) / ratio.squares;
    errors += error * error;
  }
  const double count = static_cast<double>(history.size());
  ratio.variance = std::max(kMinVariance, count / (count - 1) * errors);
  return ratio;
}

SnrEstimate SnrEstimator::AtFullBatch(double ratio, double half_width) const {
  const double parts = parts_;
  const auto at_full_batch = [parts](double r) {
    // The formula has a pole at -1 / (N - 1), which no truth comes near but the end of an interval may.
    const double bounded = std::clamp(r, -0.5 / (parts - 1), 1.0);
    return parts * bounded / (1 + (parts - 1) * bounded);
  };
  return {at_full_batch(ratio), at_full_batch(ratio - half_width), at_full_batch(ratio + half_width)};
}

std::optional<PooledSnr> SnrEstimator::Pooled(const std::vector<int>& modules) const {
  double weights = 0, weighted = 0;
  std::vector<std::pair<int, Ratio>> ratios;
  for (const int module : modules) {
    const std::optional<Ratio> ratio = RatioOf(module);
    if (!ratio) continue;
    ratios.emplace_back(module, *ratio);
    weights += 1 / ratio->variance;
    weighted += ratio->value / ratio->variance;
  }
  if (ratios.empty()) return std::nullopt;

  PooledSnr pooled;
  pooled.readings = readings(ratios[0].first);
  std::map<int64_t, double> errors;  // by step
  double samples = 0, told = 0;
  for (const auto& [module, ratio] : ratios) {
    const double share = 1 / ratio.variance / weights;
    pooled.readings = std::min(pooled.readings, readings(module));
    for (const Entry& entry : history_[static_cast<size_t>(module)]) {
      errors[entry.step] += share * (entry.signal - ratio.value * entry.square) / ratio.squares;
      if (entry.samples == 0) continue;
      samples += static_cast<double>(entry.samples);
      told += 1;
    }
  }
  double variance = 0;
  for (const auto& [step, error] : errors) variance += error * error;
  const double count = static_cast<double>(pooled.readings);
  variance = std::max(kMinVariance, count / (count - 1) * variance);
  pooled.snr = AtFullBatch(weighted / weights, StudentQuantile95(pooled.readings - 1) * std::sqrt(variance));
  pooled.samples = told > 0 ? samples / told : 0;
  return pooled;
}

}  // namespace egeria::policy
