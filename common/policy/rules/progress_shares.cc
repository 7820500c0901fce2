#include "common/policy/rules/progress_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "common/policy/rules/snr.h"

namespace egeria::policy {
namespace {

constexpr double kMaxProgress = 1e100;

// Returns p of each module that the reading tells of; empty where it tells nothing.
std::vector<double> ProgressOf(const GradientReading& reading) {
  const std::vector<double>& progress = reading.progress;
  const bool usable = reading.parts >= 2 && std::all_of(progress.begin(), progress.end(), [](double p) {
                        return std::abs(p) <= kMaxProgress;  // NaN is not
                      });
  return usable ? progress : std::vector<double>{};
}

double HalfWidth(const std::vector<double>& errors) {
  const double count = static_cast<double>(errors.size());
  double squares = 0;
  for (const double error : errors) squares += error * error;
  return StudentQuantile95(static_cast<int>(errors.size()) - 1) * std::sqrt(count / (count - 1) * squares);
}

}  // namespace

ProgressShares::ProgressShares(int min_readings, int max_readings)
    : min_readings_(min_readings), max_readings_(static_cast<size_t>(max_readings)) {
  EGERIA_CHECK(min_readings >= 2 && max_readings >= min_readings);
}

void ProgressShares::Add(const GradientReading& reading) {
  std::vector<double> progress = ProgressOf(reading);
  if (progress.empty()) return;
  const bool like_before =
      !readings_.empty() && reading.first_module == first_module_ && progress.size() == readings_.front().size();
  if (!like_before) Forget();
  first_module_ = reading.first_module;
  readings_.push_back(std::move(progress));
  if (readings_.size() > max_readings_) readings_.pop_front();
}

std::optional<ProgressShares::Share> ProgressShares::Before(int end) const {
  if (readings() < min_readings_ || end <= first_module_) return std::nullopt;
  const auto modules =
      static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(end - first_module_), readings_.front().size()));
  std::vector<double> parts, totals;
  for (const std::vector<double>& progress : readings_) {
    parts.push_back(std::accumulate(progress.begin(), progress.begin() + modules, 0.0));
    totals.push_back(std::accumulate(progress.begin(), progress.end(), 0.0));
  }
  const double part = std::accumulate(parts.begin(), parts.end(), 0.0);
  const double total = std::accumulate(totals.begin(), totals.end(), 0.0);
  std::vector<double> errors;
  for (const double value : totals) errors.push_back(value - total / static_cast<double>(totals.size()));
  if (!(total > HalfWidth(errors))) return std::nullopt;

  const double share = part / total;
  for (size_t i = 0; i < parts.size(); ++i) errors[i] = (parts[i] - share * totals[i]) / total;
  const double half_width = HalfWidth(errors);
  return Share{share, share - half_width, share + half_width};
}

}  // namespace egeria::policy
