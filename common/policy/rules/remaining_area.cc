#include "common/policy/rules/remaining_area.h"

#include <algorithm>

#include "common/policy/training_fractions.h"

namespace egeria::policy {

RemainingArea::RemainingArea(const JobShape& shape)
    : planned_(HaveArea(shape.planned_learning_rates) ? shape.planned_learning_rates : std::vector<double>{}),
      pieces_(planned_.empty() ? 0 : static_cast<double>(planned_.size() - 1)),
      whole_(AreaUntil(pieces_, planned_)),
      total_steps_(shape.total_steps) {
  if (shape.first_step == 0 || !(shape.mean_rate_before > 0)) return;
  observed_until_ = shape.first_step;
  rate_ = shape.mean_rate_before;
  past_ = rate_ * static_cast<double>(shape.first_step);
}

void RemainingArea::Observe(int64_t step, double rate) {
  const int64_t since = observed_until_.value_or(0);
  if (step < since) {  // training goes on from an older step
    past_ *= since > 0 ? static_cast<double>(step) / static_cast<double>(since) : 0;
  } else {
    past_ += (observed_until_ ? rate_ : rate) * static_cast<double>(step - since);
  }
  observed_until_ = step;
  rate_ = rate;
}

std::optional<double> RemainingArea::After(int64_t step) const {
  if (total_steps_ == 0) return std::nullopt;
  if (step >= total_steps_) return 0;
  if (!planned_.empty()) {
    const double done = std::max(0.0, static_cast<double>(step) / static_cast<double>(total_steps_));
    return std::max(0.0, 1 - AreaUntil(done * pieces_, planned_) / whole_);
  }
  if (!observed_until_) return std::nullopt;
  const double past = past_ + rate_ * static_cast<double>(std::max<int64_t>(0, step - *observed_until_));
  const double ahead = rate_ * static_cast<double>(total_steps_ - step);
  return past + ahead > 0 ? ahead / (past + ahead) : 0;
}

std::optional<int64_t> RemainingArea::StepWith(double left) const {
  if (planned_.empty() || total_steps_ == 0) return std::nullopt;
  return StepAtArea(std::clamp(1 - left, 0.0, 1.0), planned_, total_steps_);
}

}  // namespace egeria::policy
