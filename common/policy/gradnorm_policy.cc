#include "common/policy/gradnorm_policy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr double kLargestSquare = 1e200;

// Returns the percentile of values, which are not empty, linear between ranks.
double Percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  const double rank = percent / 100 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  if (below + 1 >= values.size()) return values.back();
  const double share = rank - static_cast<double>(below);
  return share == 0 ? values[below] : values[below] + share * (values[below + 1] - values[below]);
}

}  // namespace

GradnormPolicy::GradnormPolicy(const GradnormConfig& config, const JobShape& shape)
    : config_(config),
      modules_(shape.modules),
      sums_(static_cast<size_t>(shape.modules)),
      norms_(static_cast<size_t>(shape.modules)) {
  StartInterval(shape.first_step);
}

void GradnormPolicy::StartInterval(int64_t step) {
  interval_end_ = step + config_.check_steps;
  std::fill(sums_.begin(), sums_.end(), Sum());
}

std::optional<Decision> GradnormPolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  if (const std::optional<GradientReading>& reading = observation.gradients) {
    for (size_t i = 0; i < reading->square_of_mean.size(); ++i) {
      const size_t module = static_cast<size_t>(reading->first_module) + i;
      const double square = reading->square_of_mean[i];
      if (module >= sums_.size() || !(square >= 0 && square <= kLargestSquare)) continue;
      sums_[module].squares += square;
      sums_[module].readings += 1;
    }
  }
  return step_ >= interval_end_ ? Check() : std::nullopt;
}

std::optional<Decision> GradnormPolicy::Check() {
  const size_t front = static_cast<size_t>(frozen_prefix_);
  // An interval without readings is not compared; the norms before it stand.
  const bool read =
      std::all_of(sums_.begin() + frozen_prefix_, sums_.end(), [](const Sum& sum) { return sum.readings > 0; });
  if (!read) {
    interval_end_ = step_ + config_.check_steps;
    return std::nullopt;
  }
  std::vector<double> changes;
  for (size_t module = front; module < sums_.size(); ++module) {
    const double norm = std::sqrt(sums_[module].squares / sums_[module].readings);
    const std::optional<double> before = norms_[module];
    norms_[module] = norm;
    if (!before) continue;
    changes.push_back(norm == *before ? 0
                      : *before > 0   ? std::abs(norm - *before) / *before
                                      : std::numeric_limits<double>::max());
  }
  StartInterval(step_);
  if (changes.size() < sums_.size() - front) return std::nullopt;  // the first interval

  const double bar = Percentile(changes, config_.percentile);
  int prefix = frozen_prefix_;
  while (prefix < modules_ - 1 && changes[static_cast<size_t>(prefix - frozen_prefix_)] < bar) ++prefix;
  if (prefix == frozen_prefix_) return std::nullopt;
  Decision decision;
  decision.step = step_;
  decision.action = Action::kFreeze;
  decision.reason = absl::StrFormat(
      "modules %d to %d: gradient norms have changed by less than %.3g over %d steps, the %g. percentile of the active "
      "modules",
      frozen_prefix_, prefix - 1, bar, config_.check_steps, config_.percentile);
  decision.frozen_prefix = frozen_prefix_ = prefix;
  return decision;
}

std::optional<GradientMonitoring> GradnormPolicy::gradient_monitoring() const {
  if (frozen_prefix_ == modules_ - 1) return std::nullopt;
  return GradientMonitoring{config_.interval_steps, frozen_prefix_};
}

void GradnormPolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
  step_ = step;
  frozen_prefix_ = frozen_prefix;
  std::fill(norms_.begin(), norms_.end(), std::nullopt);
  StartInterval(step);
}

PolicyStatus GradnormPolicy::status() const { return EmptyStatus(modules_); }

}  // namespace egeria::policy
