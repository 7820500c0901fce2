#include "worker/planning/learning_rates.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace egeria::worker {
namespace {

int CountModules(const std::vector<bool>& zeros, const LearningRates::ModuleGroups& groups) {
  int count = 0;
  for (size_t module = 0; module + 1 < groups.size(); ++module) {
    const std::vector<int>& own = groups[module];
    if (!std::all_of(own.begin(), own.end(), [&zeros](int group) { return zeros[group]; })) break;
    if (!own.empty()) count = static_cast<int>(module) + 1;
  }
  return count;
}

}  // namespace

void LearningRates::EndStep(absl::Span<const double> rates) {
  if (!sum_.has_value()) return;
  const double rate = followed_.Of(rates);
  if (std::isfinite(rate)) *sum_ += rate;
}

double LearningRates::MeanOver(int64_t steps) const {
  return sum_.has_value() && steps > 0 ? *sum_ / static_cast<double>(steps) : 0;
}

int LearningRates::ZeroLrPrefix(absl::Span<const double> rates, const std::function<ModuleGroups()>& groups) {
  std::vector<bool> zeros;
  for (const double rate : rates) zeros.push_back(rate == 0);
  if (std::find(zeros.begin(), zeros.end(), false) == zeros.end() || zeros == zeros_) return zero_lr_prefix_;
  zero_lr_prefix_ = CountModules(zeros, groups());
  zeros_ = std::move(zeros);
  return zero_lr_prefix_;
}

void LearningRates::ForgetModules() {
  zeros_.clear();
  zero_lr_prefix_ = 0;
}

}  // namespace egeria::worker
