#include "worker/session/plan_schedule.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace egeria::worker {

absl::StatusOr<PlanSchedule> PlanSchedule::Make(std::vector<Entry> entries, int modules) {
  int64_t last = 0;
  for (const Entry& entry : entries) {
    if (entry.step <= last) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PLANS", "step ", entry.step,
                        " does not come after step ", last, ": steps must rise, from 1");
    }
    if (entry.frozen_prefix < 0 || entry.frozen_prefix >= modules) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PLANS", "at step ", entry.step, ": ",
                        entry.frozen_prefix, " of ", modules,
                        " layer modules cannot be frozen (the last one never is)");
    }
    last = entry.step;
  }
  PlanSchedule schedule;
  schedule.entries_ = std::move(entries);
  return schedule;
}

std::optional<int> PlanSchedule::At(int64_t step) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), step,
                                      [](const Entry& entry, int64_t s) { return entry.step < s; });
  if (found == entries_.end() || found->step != step) return std::nullopt;
  return found->frozen_prefix;
}

}  // namespace egeria::worker
