#include "common/policy/rules/early_prefix.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_format.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// This is c, which was .38 to .5 where parts of transformers were frozen early (docs/adr/0017).
constexpr double kNotLearnedByOthers = 0.4;
// This is f of lookup tables, which was .01 to .05 in three language models.
constexpr double kShareOfTables = 0.05;
// A switch takes some steps' time, and each depth is a compilation of its own: less than this share of the time is not
// worth it.
constexpr double kMinTime = 0.1;
constexpr int kMinReadings = 20;
constexpr int kMaxReadings = 30;
// No part of a training is known to make next to nothing of its progress before this part of the steps, nor where the
// rates to come are hardly lower than those before.
constexpr double kEarliest = 0.4;
constexpr double kMaxMeanRateToCome = 0.75;

// Returns the values scaled so that they add up to 1; empty where they are not one for each module.
std::vector<double> Normalised(std::vector<double> values, int modules) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() != static_cast<size_t>(modules) || !(sum > 0)) return {};
  for (double& value : values) value /= sum;
  return values;
}

}  // namespace

EarlyPrefix::EarlyPrefix(double max_share, double lr_area_left, const JobShape& shape)
    : max_share_(max_share),
      lr_area_left_(lr_area_left),
      embedding_prefix_(shape.embedding_prefix),
      first_step_(StepsOfPart(kEarliest, static_cast<double>(shape.total_steps))),
      times_(Normalised(shape.step_shares, shape.modules)),
      possible_(max_share > 0 && shape.total_steps > 0 && !times_.empty() &&
                FallSmoothly(shape.planned_learning_rates)),
      shares_(kMinReadings, kMaxReadings) {}

bool EarlyPrefix::IsTime(int64_t step, double mean_rate_to_come) const {
  return possible_ && !fell_at_once_ && step >= first_step_ && mean_rate_to_come <= kMaxMeanRateToCome;
}

void EarlyPrefix::OnRateChange(bool fell) {
  fell_at_once_ = fell_at_once_ || fell;
  shares_.Forget();
}

void EarlyPrefix::Add(const GradientReading& reading) {
  shares_.Add(reading);
  readings_come_ = readings_come_ || shares_.readings() > 0;
}

std::optional<EarlyPrefix::Found> EarlyPrefix::Judge(int first, int prefix, double left) const {
  const double time = std::accumulate(times_.begin() + first, times_.begin() + prefix, 0.0);
  if (time < kMinTime) return std::nullopt;
  const std::optional<ProgressShares::Share> share =
      shares_.first_module() == first ? shares_.Before(prefix) : std::nullopt;
  if (!share && prefix > embedding_prefix_) return std::nullopt;
  const double missed = kNotLearnedByOthers * std::max(0.0, share ? share->upper : kShareOfTables);
  if (missed > max_share_ * time || given_up_ + missed * left > lr_area_left_ * (1 + 1e-9)) return std::nullopt;
  const std::string progress = share ? absl::StrFormat("make %.2g %% (%.2g..%.2g) of the progress", 100 * share->value,
                                                       100 * share->lower, 100 * share->upper)
                                     : "are lookup tables, which make little of the progress";
  return Found{
      {prefix, absl::StrFormat("modules %d to %d take %.3g %% of the time and %s, of which %.3g %% are still to come",
                               first, prefix - 1, 100 * time, progress, 100 * left)},
      missed * left};
}

std::optional<EarlyPrefix::Found> EarlyPrefix::Look(int frozen, int max, double left) const {
  if (!possible_ || (readings_come_ && shares_.readings() < kMinReadings)) return std::nullopt;
  for (int prefix = max; prefix > frozen; --prefix) {
    if (auto found = Judge(frozen, prefix, left)) return found;
  }
  return std::nullopt;
}

void EarlyPrefix::BookBefore(int prefix, double left) {
  if (!possible_) return;
  const double time = std::accumulate(times_.begin(), times_.begin() + prefix, 0.0);
  const double missed = prefix <= embedding_prefix_ ? kNotLearnedByOthers * kShareOfTables : max_share_ * time;
  given_up_ = std::min(lr_area_left_, missed * left);
}

void EarlyPrefix::Book(const Found& found) {
  given_up_ += found.given_up;
  shares_.Forget();
}

}  // namespace egeria::policy
