#include "common/policy/rules/rate_rise.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace egeria::policy {
namespace {

constexpr double kSlack = 1e-9;

}  // namespace

RateRise::RateRise(double factor, int modules) : factor_(factor), rate_at_freeze_(static_cast<size_t>(modules)) {}

std::optional<Proposal> RateRise::Observe(double rate, int frozen, int exempt) {
  for (int module = 0; module < frozen; ++module) {
    std::optional<double>& known = rate_at_freeze_[static_cast<size_t>(module)];
    if (!known) known = rate;
  }
  if (factor_ == 0) return std::nullopt;
  for (int module = exempt; module < frozen; ++module) {
    const double at_freeze = *rate_at_freeze_[static_cast<size_t>(module)];
    if (rate <= at_freeze * factor_ * (1 + kSlack)) continue;
    return Proposal{module, absl::StrFormat("learning rate %.4g is over %g times the %.4g at which module %d froze",
                                            rate, factor_, at_freeze, module)};
  }
  return std::nullopt;
}

void RateRise::OnPrefix(int before, int prefix, std::optional<double> rate) {
  for (size_t module = static_cast<size_t>(std::min(before, prefix)); module < rate_at_freeze_.size(); ++module) {
    rate_at_freeze_[module] = static_cast<int>(module) < prefix ? rate : std::nullopt;
  }
}

}  // namespace egeria::policy
