#include "common/policy/rules/rate_changes.h"

#include <algorithm>
#include <cmath>

#include "common/policy/policy.h"

namespace egeria::policy {
namespace {

constexpr double kChange = 0.1;
constexpr int64_t kSpan = 10;  // the last 1 / kSpan of all steps are looked back on
constexpr double kShareAtOnce = 0.4;

}  // namespace

bool RateChanges::Observe(int64_t step, double rate) {
  if (rates_.empty()) {
    rates_.push_back({step, rate});
    lowest_ = rate;
    return false;
  }
  if (rate == rates_.back().rate) return false;
  const bool risen = rate > lowest_ * (1 + kChange) * (1 + kRateSlack);
  const bool changed = risen || FellAtOnce(step, rate);
  lowest_ = changed ? rate : std::min(lowest_, rate);
  if (risen) rates_.clear();  // its falls of before do not count for those to come
  rates_.push_back({step, rate});
  while (rates_.size() > 1 && rates_[1].step <= step - step / kSpan) rates_.pop_front();
  return changed;
}

bool RateChanges::FellAtOnce(int64_t step, double rate) const {
  const double before = rates_.back().rate;
  if (!(rate < before * (1 - kChange) * (1 - kRateSlack))) return false;
  if (rate == 0) return true;
  double highest = before;
  for (size_t i = 0; i < rates_.size(); ++i) {
    const bool in_span = i + 1 == rates_.size() || rates_[i + 1].step > step - step / kSpan;
    if (in_span) highest = std::max(highest, rates_[i].rate);
  }
  return std::log(before / rate) > kShareAtOnce * std::log(highest / rate);
}

void RateChanges::Forget() {
  rates_.clear();
  lowest_ = 0;
}

}  // namespace egeria::policy
