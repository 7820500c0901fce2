#include "worker/planning/planned_saving.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/policy/constants.h"
#include "common/policy/planned_saving.h"
#include "common/policy/policy_proto.h"
#include "common/policy/training_fractions.h"
#include "worker/agent/registration.h"

namespace egeria::worker {

absl::StatusOr<double> PlannedSaving(const std::string& policy_json, int64_t total_steps,
                                     const std::vector<double>& step_shares, double budget,
                                     const std::vector<double>& learning_rates, int embedding_prefix) {
  EGERIA_ASSIGN_OR_RETURN(const v1::PolicyConfig proto, ParsePolicy(policy_json));
  const policy::PolicyConfig config = policy::FromProto(proto);
  policy::JobShape shape;
  shape.modules = static_cast<int>(step_shares.size());
  shape.total_steps = total_steps;
  shape.step_shares = step_shares;
  shape.budget = budget;
  shape.planned_learning_rates = learning_rates;
  shape.embedding_prefix = embedding_prefix;
  EGERIA_ASSIGN_OR_RETURN(const double saving, policy::PlannedSaving(config, shape));
  if (saving <= 0 && !policy::KindOf(config).follows_a_clock) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NO_PLAN", "the policy '", policy::PolicyName(config),
                      "' decides by measurements, so that its saving is not known in advance: give the saving that you "
                      "expect, or take a policy that follows a clock (auto, staged)");
  }
  return saving;
}

double SavedBefore(int64_t step, const std::vector<std::pair<int64_t, int>>& changes, int modules,
                   const std::vector<double>& step_shares, int64_t total_steps) {
  if (total_steps <= 0) return 0;
  policy::JobShape shape;
  shape.modules = modules;
  shape.step_shares = step_shares;
  const std::vector<double> shares = policy::TimeSharesOf(shape);
  double saved = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const auto& [begin, prefix] = changes[i];
    const int64_t end = i + 1 < changes.size() ? std::min(changes[i + 1].first, step) : step;
    const double share = policy::ShareOfPrefix(std::clamp(prefix, 0, modules), shares);
    saved += share * static_cast<double>(std::max<int64_t>(0, end - begin));
  }
  return std::min(1.0, saved / static_cast<double>(total_steps));
}

int64_t ReinvestedSteps(int64_t steps, double saving) {
  return static_cast<int64_t>(static_cast<double>(steps) / (1 - saving) + 1e-9);
}

}  // namespace egeria::worker
