#include "common/policy/planned_saving.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/policy/constants.h"
#include "common/policy/policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr int64_t kMaxLooks = 10'000;  // a longer training is looked at every so many steps

}  // namespace

absl::StatusOr<double> PlannedSaving(const PolicyConfig& config, JobShape shape) {
  shape.first_step = 0;
  shape.saved_before = 0;
  EGERIA_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakePolicy(config, shape));
  if (shape.total_steps == 0) return BadPolicy("a policy's saving depends on the number of steps; give total_steps");
  const std::vector<double> shares = TimeSharesOf(shape);
  const int64_t stride = std::max<int64_t>(1, shape.total_steps / kMaxLooks);
  double saved = 0;
  for (int64_t step = 0; step < shape.total_steps; step += stride) {
    Observation observation;
    observation.step = step;
    policy->Observe(observation);
    const int64_t steps = std::min(stride, shape.total_steps - step);
    saved += ShareOfPrefix(policy->frozen_prefix(), shares) * static_cast<double>(steps);
  }
  return saved / static_cast<double>(shape.total_steps);
}

}  // namespace egeria::policy
