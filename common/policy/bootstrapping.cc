#include "common/policy/bootstrapping.h"

#include <cmath>
#include <limits>

#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr double kSettledShare = 0.10;

struct Mean {
  double sum = 0;
  double count = 0;
  double value() const { return sum / count; }
};

}  // namespace

Bootstrapping::Bootstrapping(int64_t interval_steps) : half_(3 * interval_steps) { EGERIA_CHECK(interval_steps >= 1); }

Bootstrapping Bootstrapping::WithoutLosses(int64_t interval_steps, int64_t first_step) {
  EGERIA_CHECK(first_step >= 0);
  Bootstrapping stage(interval_steps);
  stage.blind_from_ = first_step;
  return stage;
}

void Bootstrapping::Pass(int64_t step) {
  const std::optional<int64_t> awaited = awaited_step();
  if (awaited && step >= *awaited) over_ = true;
}

std::optional<int64_t> Bootstrapping::awaited_step() const {
  if (over_ || !blind_from_) return std::nullopt;
  const int64_t most = std::numeric_limits<int64_t>::max();
  return *blind_from_ > most - 2 * half_ ? most : *blind_from_ + 2 * half_;
}

bool Bootstrapping::Observe(int64_t step, double loss) {
  if (over_) return true;
  if (blind_from_) return false;
  if (!losses_.empty() && step < losses_.back().step) return false;
  if (!first_step_) first_step_ = step;
  if (losses_.empty() || losses_.back().step != step) losses_.push_back({step, 0, 0});
  losses_.back().sum += loss;
  losses_.back().count += 1;
  while (step - losses_.front().step >= 2 * half_) losses_.pop_front();
  if (step - *first_step_ < 2 * half_ - 1) return false;

  // The sums are taken anew each time: 6n additions in a stage that ends soon, instead of a running sum that drifts.
  Mean before, last;
  for (const StepLoss& entry : losses_) {
    Mean& mean = step - entry.step < half_ ? last : before;
    mean.sum += entry.sum;
    mean.count += static_cast<double>(entry.count);
  }
  if (before.count == 0) return false;
  const double change = std::abs(last.value() - before.value());
  over_ = change == 0 || change < kSettledShare * std::abs(before.value());
  if (over_) losses_.clear();
  return over_;
}

void Bootstrapping::Restart() {
  losses_.clear();
  first_step_.reset();
}

}  // namespace egeria::policy
