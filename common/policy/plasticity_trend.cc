#include "common/policy/plasticity_trend.h"

#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr double kRise = 1.2;

}  // namespace

PlasticityTrend::PlasticityTrend(int window) : window_(static_cast<size_t>(window)) { EGERIA_CHECK(window >= 2); }

void PlasticityTrend::Add(double plasticity) {
  readings_.push_back(plasticity);
  if (readings_.size() > 2 * window_) readings_.pop_front();
}

double PlasticityTrend::MeanOf(size_t first) const {
  double sum = 0;
  for (size_t i = first; i < first + window_; ++i) sum += readings_[i];
  return sum / static_cast<double>(window_);
}

bool PlasticityTrend::IsRising() const {
  return readings_.size() == 2 * window_ && MeanOf(window_) > kRise * MeanOf(0);
}

}  // namespace egeria::policy
