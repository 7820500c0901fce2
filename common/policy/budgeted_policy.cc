#include "common/policy/budgeted_policy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr double kMinRealised = 0.5;
constexpr double kMaxRealised = 2;

}  // namespace

BudgetedPolicy::BudgetedPolicy(std::unique_ptr<Policy> inner, const JobShape& shape)
    : WrappedPolicy(std::move(inner)),
      budget_(shape.budget),
      total_steps_(shape.total_steps),
      shares_(TimeSharesOf(shape)),
      step_(shape.first_step),
      promised_(shape.saved_before) {
  EGERIA_CHECK(budget_ > 0 && total_steps_ > 0);
}

void BudgetedPolicy::PassTo(int64_t step) {
  const int64_t until = std::min(step, total_steps_);
  if (until <= step_) return;
  promised_ +=
      ShareOfPrefix(frozen_prefix(), shares_) * static_cast<double>(until - step_) / static_cast<double>(total_steps_);
  step_ = until;
}

double BudgetedPolicy::PromisedAtTheEnd(int prefix) const {
  return promised_ +
         ShareOfPrefix(prefix, shares_) * static_cast<double>(total_steps_ - step_) / static_cast<double>(total_steps_);
}

std::optional<Decision> BudgetedPolicy::Observe(const Observation& observation) {
  PassTo(observation.step);
  if (observation.account) {
    realised_ =
        std::clamp(RealisedSaving(*observation.account, shares_).value_or(realised_), kMinRealised, kMaxRealised);
  }
  const int before = frozen_prefix();
  std::optional<Decision> decision = inner().Observe(observation);
  if (!decision || decision->frozen_prefix <= before) return decision;
  int enough = before;
  while (enough < decision->frozen_prefix && !Reached(enough)) ++enough;
  if (enough == decision->frozen_prefix) return decision;
  inner().Adopt(decision->step, enough);
  if (enough == before) return std::nullopt;
  decision->frozen_prefix = enough;
  decision->reason += absl::StrFormat("; %d modules are enough for the budget of %g %%", enough, 100 * budget_);
  return decision;
}

void BudgetedPolicy::Adopt(int64_t step, int frozen_prefix) {
  if (step < step_) {  // resumed from an older checkpoint
    // What lies between is forgotten as if the prefix before had been frozen evenly over the steps so far.
    promised_ *= step_ > 0 ? static_cast<double>(step) / static_cast<double>(step_) : 0;
    step_ = step;
  }
  PassTo(step);
  inner().Adopt(step, frozen_prefix);
}

std::optional<Monitoring> BudgetedPolicy::monitoring() const {
  return Reached(frozen_prefix()) ? std::nullopt : inner().monitoring();
}

std::optional<GradientMonitoring> BudgetedPolicy::gradient_monitoring() const {
  const std::optional<GradientMonitoring> wanted = inner().gradient_monitoring();
  if (wanted && wanted->first_module >= frozen_prefix() && Reached(frozen_prefix())) return std::nullopt;
  return wanted;
}

}  // namespace egeria::policy
