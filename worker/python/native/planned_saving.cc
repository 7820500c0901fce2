#include "worker/python/native/planned_saving.h"

#include "common/base/status.h"
#include "controller/job/policy_proto.h"
#include "controller/policy/planned_saving.h"
#include "worker/agent/registration.h"

namespace egeria::python {

absl::StatusOr<double> PlannedSaving(const std::string& policy_json, int64_t total_steps,
                                     const std::vector<double>& step_shares, double budget,
                                     const std::vector<double>& learning_rates) {
  EGERIA_ASSIGN_OR_RETURN(const v1::PolicyConfig proto, worker::ParsePolicy(policy_json));
  policy::JobShape shape;
  shape.modules = static_cast<int>(step_shares.size());
  shape.total_steps = total_steps;
  shape.step_shares = step_shares;
  shape.budget = budget;
  shape.planned_learning_rates = learning_rates;
  return policy::PlannedSaving(controller::FromProto(proto), shape);
}

}  // namespace egeria::python
