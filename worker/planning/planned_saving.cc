#include "worker/planning/planned_saving.h"

#include "common/base/status.h"
#include "controller/job/policy_proto.h"
#include "controller/policy/planned_saving.h"
#include "worker/agent/registration.h"

namespace egeria::worker {

absl::StatusOr<double> PlannedSaving(const std::string& policy_json, int64_t total_steps,
                                     const std::vector<double>& step_shares, double budget,
                                     const std::vector<double>& learning_rates) {
  EGERIA_ASSIGN_OR_RETURN(const v1::PolicyConfig proto, ParsePolicy(policy_json));
  const policy::PolicyConfig config = controller::FromProto(proto);
  policy::JobShape shape;
  shape.modules = static_cast<int>(step_shares.size());
  shape.total_steps = total_steps;
  shape.step_shares = step_shares;
  shape.budget = budget;
  shape.planned_learning_rates = learning_rates;
  EGERIA_ASSIGN_OR_RETURN(const double saving, policy::PlannedSaving(config, shape));
  if (saving <= 0 && !policy::FollowsAClock(config)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NO_PLAN", "the policy '", policy::PolicyName(config),
                      "' decides by what it measures, so that what it will save is not known: give the saving that you "
                      "expect, or take a policy that follows a clock (auto, staged)");
  }
  return saving;
}

int64_t ReinvestedSteps(int64_t steps, double saving) {
  return static_cast<int64_t>(static_cast<double>(steps) / (1 - saving) + 1e-9);
}

}  // namespace egeria::worker
