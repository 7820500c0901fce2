#ifndef EGERIA_COMMON_POLICY_PLANNED_SAVING_H_
#define EGERIA_COMMON_POLICY_PLANNED_SAVING_H_

#include "absl/status/statusor.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// Returns the part of a whole training's time that a policy saves by the clock alone, if it learns of nothing but the
// steps and all its decisions come true. It is 0 for a policy that waits for what is measured.
//
//   sum over the steps t of S(prefix at t) / T,   S(k) the share of a step's time that prefix k saves.
//
// Requires the total steps. Errors: the ones of MakePolicy(); INVALID_ARGUMENT [BAD_POLICY] the number of steps is
// unknown.
absl::StatusOr<double> PlannedSaving(const PolicyConfig& config, JobShape shape);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_PLANNED_SAVING_H_
