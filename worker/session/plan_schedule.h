#ifndef EGERIA_WORKER_SESSION_PLAN_SCHEDULE_H_
#define EGERIA_WORKER_SESSION_PLAN_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::worker {

// Gives plans without a controller: exactly which prefix is frozen from which step boundary on. It serves
// tests, and reproduces what a controller decided in another run. All ranks have the same list, so that
// there is nothing to agree on. It is immutable.
class PlanSchedule {
 public:
  struct Entry {
    int64_t step = 0;  // optimizer steps done when it takes effect
    int frozen_prefix = 0;
  };

  PlanSchedule() = default;
  // Errors: INVALID_ARGUMENT [BAD_PLANS] steps that do not rise, or a prefix that `modules` do not allow.
  static absl::StatusOr<PlanSchedule> Make(std::vector<Entry> entries, int modules);

  bool empty() const { return entries_.empty(); }
  // Returns the prefix to apply at the boundary after `step` optimizer steps, if the schedule names that step.
  std::optional<int> At(int64_t step) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_PLAN_SCHEDULE_H_
