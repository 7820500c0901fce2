#ifndef EGERIA_WORKER_PLANNING_PLANNED_SAVING_H_
#define EGERIA_WORKER_PLANNING_PLANNED_SAVING_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::worker {

// A registration holds at most so many planned learning rates.
inline constexpr int64_t kMaxPlannedRates = 1024;

// Returns what policy::PlannedSaving() says of a policy that follows a clock, for a training whose length is still
// to be chosen.
//
// Args:
//   policy_json: egeria.v1.PolicyConfig in protobuf's JSON.
//   step_shares: the layer modules' shares, as in egeria.v1.LayerModule.
//   budget: 0 means none.
//   learning_rates, embedding_prefix: the same as JobShape::planned_learning_rates and JobShape::embedding_prefix.
// Errors: INVALID_ARGUMENT [BAD_POLICY], or [NO_PLAN] the policy waits for what it measures.
absl::StatusOr<double> PlannedSaving(const std::string& policy_json, int64_t total_steps,
                                     const std::vector<double>& step_shares, double budget,
                                     const std::vector<double>& learning_rates, int embedding_prefix = 0);

// Returns the part of a training's time, 0..1, that frozen layer modules saved before `step`, for
// JobDescription::saved_before.
//
// Args:
//   changes: pairs of a step and the frozen prefix since then, in order.
//   modules: how many layer modules there are.
//   step_shares: their shares; where nobody knows them, each module counts the same, as for the controller.
//   total_steps: the length of the whole training; 0 means that it is not known, nor is what was saved.
double SavedBefore(int64_t step, const std::vector<std::pair<int64_t, int>>& changes, int modules,
                   const std::vector<double>& step_shares, int64_t total_steps);

// Returns as many steps as take the time of `steps` when `saving` of it, 0 to under 1, is saved.
int64_t ReinvestedSteps(int64_t steps, double saving);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_PLANNING_PLANNED_SAVING_H_
