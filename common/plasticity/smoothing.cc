#include "common/plasticity/smoothing.h"

#include "common/base/status.h"

namespace egeria::plasticity {

Window::Window(size_t capacity) : capacity_(capacity) { EGERIA_CHECK(capacity >= 1 && capacity <= 1024); }

void Window::Add(double value) {
  if (values_.size() == capacity_) values_.pop_front();
  values_.push_back(value);
}

double Window::Mean() const {
  EGERIA_CHECK(!values_.empty());
  // The wider type makes the sum of most series exact. Equal values have that very value as their mean, the order of
  // values does not matter, and where plasticity is constant the slope is 0 and not what rounding leaves.
  long double sum = 0;
  for (const double value : values_) sum += value;
  return static_cast<double>(sum / static_cast<long double>(values_.size()));
}

std::optional<double> Window::Slope() const {
  const size_t count = values_.size();
  if (count < 2) return std::nullopt;
  // sum((x - mean x) y) / sum((x - mean x)^2), with the values paired from the ends, where the weights are
  // opposite: exactly 0 for a constant series.
  const double center = static_cast<double>(count - 1) / 2;
  double numerator = 0;
  double denominator = 0;
  for (size_t low = 0, high = count - 1; low < high; ++low, --high) {
    const double weight = static_cast<double>(high) - center;
    numerator += weight * (values_[high] - values_[low]);
    denominator += 2 * weight * weight;
  }
  return numerator / denominator;
}

}  // namespace egeria::plasticity
