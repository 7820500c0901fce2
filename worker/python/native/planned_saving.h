#ifndef EGERIA_WORKER_PYTHON_NATIVE_PLANNED_SAVING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PLANNED_SAVING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::python {

// See policy::PlannedSaving().
//
// Args:
//   policy_json: egeria.v1.PolicyConfig in protobuf's JSON.
//   step_shares: of the layer modules, as in egeria.v1.LayerModule.
//   budget: 0: none.
//   learning_rates: as JobShape::planned_learning_rates.
// Errors: INVALID_ARGUMENT [BAD_POLICY].
absl::StatusOr<double> PlannedSaving(const std::string& policy_json, int64_t total_steps,
                                     const std::vector<double>& step_shares, double budget,
                                     const std::vector<double>& learning_rates);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PLANNED_SAVING_H_
