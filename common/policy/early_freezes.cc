#include "common/policy/early_freezes.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// c: measured .38 to .5 where parts of transformers were frozen early (docs/adr/0017).
constexpr double kNotLearnedByOthers = 0.4;
// f of lookup tables: .01 to .05 in three language models.
constexpr double kShareOfTables = 0.05;
// A switch takes some steps' time, and each depth is a compilation of its own.
constexpr double kMinTime = 0.1;
constexpr int kMinReadings = 20;
constexpr int kMaxReadings = 30;
constexpr int kMinProbeReadings = 8;
constexpr int kContradictionsInARow = 2;
// From one point of the plan to the next, of the peak; more where there are few points.
constexpr double kSuddenDrop = 0.1;

// Adding up to 1; empty where they are not of so many modules.
std::vector<double> Normalised(std::vector<double> values, int modules) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() != static_cast<size_t>(modules) || !(sum > 0)) return {};
  for (double& value : values) value /= sum;
  return values;
}

bool FallSmoothly(const std::vector<double>& rates) {
  if (!HaveArea(rates)) return false;
  const double peak = *std::max_element(rates.begin(), rates.end());
  const double most = peak * std::max(kSuddenDrop, 3.0 / static_cast<double>(rates.size() - 1));
  for (size_t i = 1; i < rates.size(); ++i) {
    if (rates[i - 1] - rates[i] > most) return false;
  }
  return true;
}

// Of all progress, by a freeze that is undone with so much to come.
double SpentBy(const EarlyFreezes::Found& found, double left) {
  return std::max(0.0, found.given_up - found.missed * left);
}

}  // namespace

EarlyFreezes::EarlyFreezes(double most_share, double area_left, const JobShape& shape)
    : most_share_(most_share),
      embedding_prefix_(shape.embedding_prefix),
      area_left_(area_left),
      times_(Normalised(shape.step_shares, shape.modules)),
      possible_(most_share > 0 && shape.total_steps > 0 && !times_.empty() &&
                FallSmoothly(shape.planned_learning_rates)),
      shares_(kMinReadings, kMaxReadings),
      probe_(kMinProbeReadings, kMaxReadings) {}

void EarlyFreezes::Add(const GradientReading& reading) {
  shares_.Add(reading);
  readings_come_ = readings_come_ || shares_.readings() > 0;
}

double EarlyFreezes::TimeShare(int first, int prefix) const {
  return std::accumulate(times_.begin() + first, times_.begin() + prefix, 0.0);
}

std::optional<EarlyFreezes::Found> EarlyFreezes::Judge(const ProgressShares& shares, int first, int prefix,
                                                       double left) const {
  const double time = TimeShare(first, prefix);
  if (time < kMinTime) return std::nullopt;
  const std::optional<ProgressShares::Share> share =
      shares.first_module() == first ? shares.Before(prefix) : std::nullopt;
  if (!share && prefix > embedding_prefix_) return std::nullopt;
  const double missed = kNotLearnedByOthers * std::max(0.0, share ? share->upper : kShareOfTables);
  const double given_up = GivenUpWithout(first, left) + missed * left;
  if (missed > most_share_ * time || given_up > area_left_ * (1 + 1e-9)) return std::nullopt;
  const std::string progress = share ? absl::StrFormat("make %.2g %% (%.2g..%.2g) of the progress", 100 * share->value,
                                                       100 * share->lower, 100 * share->upper)
                                     : "are lookup tables, which make little of the progress";
  return Found{first, prefix, missed, missed * left,
               absl::StrFormat("modules %d to %d take %.3g %% of the time and %s, of which %.3g %% are still to come",
                               first, prefix - 1, 100 * time, progress, 100 * left)};
}

std::optional<EarlyFreezes::Found> EarlyFreezes::Look(int frozen, int most, double left) const {
  if (!possible_ || (readings_come_ && shares_.readings() < kMinReadings)) return std::nullopt;
  for (int prefix = most; prefix > frozen; --prefix) {
    if (auto found = Judge(shares_, frozen, prefix, left)) return found;
  }
  return std::nullopt;
}

void EarlyFreezes::Book(const Found& found, double left) {
  Refund(found.first, left);
  booked_.push_back(found);
  contradicted_ = 0;
  shares_.Forget();
}

double EarlyFreezes::given_up() const {
  return std::accumulate(booked_.begin(), booked_.end(), past_,
                         [](double sum, const Found& found) { return sum + found.given_up; });
}

double EarlyFreezes::GivenUpWithout(int first, double left) const {
  return std::accumulate(booked_.begin(), booked_.end(), past_, [first, left](double sum, const Found& found) {
    return sum + (found.first >= first ? SpentBy(found, left) : found.given_up);
  });
}

void EarlyFreezes::Limit(int prefix, double left) {
  Refund(prefix, left);
  // Of the modules of one freeze some unfreeze: who learns what is not known.
  if (!booked_.empty()) booked_.back().prefix = std::min(booked_.back().prefix, prefix);
}

void EarlyFreezes::Refund(int first, double left) {
  while (!booked_.empty() && booked_.back().first >= first) {
    past_ += SpentBy(booked_.back(), left);
    booked_.pop_back();
  }
}

std::optional<EarlyFreezes::Found> EarlyFreezes::Justified(int frozen, double left) const {
  return possible_ ? Judge(probe_, 0, frozen, left) : std::nullopt;
}

bool EarlyFreezes::IsContradicted() {
  if (prefix() == 0 || probe_.first_module() > 0) return false;
  const std::optional<ProgressShares::Share> share = probe_.Before(prefix());
  if (!share) return false;
  const bool learns = kNotLearnedByOthers * share->lower > most_share_ * TimeShare(0, prefix());
  contradicted_ = learns ? contradicted_ + 1 : 0;
  if (contradicted_ < kContradictionsInARow) return false;
  possible_ = false;
  return true;
}

}  // namespace egeria::policy
