#include "common/policy/schedule_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {

SchedulePolicy::SchedulePolicy(const ScheduleConfig& config, const JobShape& shape)
    : modules_(shape.modules), total_steps_(shape.total_steps) {
  for (const ScheduleConfig::Entry& entry : config.entries) {
    starts_.push_back({StepAtFraction(entry.fraction, total_steps_), entry.fraction, entry.frozen_prefix});
  }
}

std::optional<Decision> SchedulePolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  const Start* due = nullptr;
  while (next_ < starts_.size() && starts_[next_].step <= step_) due = &starts_[next_++];
  if (due == nullptr || due->frozen_prefix == frozen_prefix_) return std::nullopt;
  Decision decision;
  decision.step = step_;
  decision.action = due->frozen_prefix > frozen_prefix_ ? Action::kFreeze : Action::kUnfreeze;
  decision.frozen_prefix = frozen_prefix_ = due->frozen_prefix;
  decision.reason = absl::StrFormat("the schedule freezes %d of %d modules from %g %% of %d steps on",
                                    due->frozen_prefix, modules_, 100 * due->fraction, total_steps_);
  return decision;
}

void SchedulePolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
  if (step < step_) next_ = 0;  // resumed from an older checkpoint
  step_ = step;
  while (next_ < starts_.size() && starts_[next_].step < step_) ++next_;
  frozen_prefix_ = frozen_prefix;
}

PolicyStatus SchedulePolicy::status() const { return EmptyStatus(modules_); }
PolicyStatus NonePolicy::status() const { return EmptyStatus(modules_); }

}  // namespace egeria::policy
