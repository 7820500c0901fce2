#include "controller/policy/rate_changes.h"

#include <algorithm>
#include <cmath>

namespace egeria::policy {
namespace {

constexpr double kChange = 0.1;
constexpr double kSlack = 1e-9;

}  // namespace

bool RateChanges::Observe(double rate) {
  const std::optional<double> before = newest_;
  newest_ = rate;
  if (!before) {
    least_ = rate;
    return false;
  }
  const bool jumped = std::abs(rate - *before) > kChange * *before * (1 + kSlack);
  const bool risen = rate > least_ * (1 + kChange) * (1 + kSlack);
  if (!jumped && !risen) {
    least_ = std::min(least_, rate);
    return false;
  }
  least_ = rate;
  return true;
}

}  // namespace egeria::policy
