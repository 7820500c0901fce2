#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"
#include "common/policy/wrapped_policy.h"

namespace egeria::policy {
namespace {

// The machine's speed has changed where the realised saving lies outside.
constexpr double kMinRealised = 0.5;
constexpr double kMaxRealised = 2;

// A budgeted policy is another policy that freezes no more than a budget asks for. Nothing more freezes once what was
// saved, and what the present prefix saves until the end, comes to the budget. A decision that would go beyond it is
// cut to the smallest prefix that reaches it. With S(k) the share of a step's time that prefix k saves, by the modules'
// step shares, and r the realised saving (RealisedSaving(), 1 before it was measured), at step t of T:
//
//   r * (sum over the steps up to t of S(prefix at that step) / T  +  (T - t) / T * S(k))  >=  budget.
//
// Unfreezes are the inner policy's own, and so is what it wants to know; but while nothing more is to freeze it is told
// only of what is frozen, which may have to unfreeze. Thread-compatible.
class BudgetedPolicy : public WrappedPolicy {
 public:
  BudgetedPolicy(std::unique_ptr<Policy> inner, const JobShape& shape)
      : WrappedPolicy(std::move(inner)),
        budget_(shape.budget),
        total_steps_(shape.total_steps),
        shares_(TimeSharesOf(shape)),
        step_(shape.first_step),
        promised_(shape.saved_before) {
    EGERIA_CHECK(budget_ > 0 && total_steps_ > 0);
  }

  std::optional<Decision> Observe(const Observation& observation) override {
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

  void Adopt(int64_t step, int frozen_prefix) override {
    if (step < step_) {  // training goes on from an older checkpoint
      // The steps between are forgotten as if the prefix before had been frozen evenly over the steps so far.
      promised_ *= step_ > 0 ? static_cast<double>(step) / static_cast<double>(step_) : 0;
      step_ = step;
    }
    PassTo(step);
    inner().Adopt(step, frozen_prefix);
  }

  std::optional<Monitoring> monitoring() const override {
    return Reached(frozen_prefix()) ? std::nullopt : inner().monitoring();
  }

  std::optional<GradientMonitoring> gradient_monitoring() const override {
    const std::optional<GradientMonitoring> wanted = inner().gradient_monitoring();
    if (wanted && wanted->first_module >= frozen_prefix() && Reached(frozen_prefix())) return std::nullopt;
    return wanted;
  }

  bool wants_account() const override { return true; }

 private:
  // Returns the part of the job's time that `prefix` saves over so many steps, as step shares promise.
  double Promised(int prefix, int64_t steps) const {
    return ShareOfPrefix(prefix, shares_) * static_cast<double>(steps) / static_cast<double>(total_steps_);
  }

  void PassTo(int64_t step) {
    const int64_t until = std::min(step, total_steps_);
    if (until <= step_) return;
    promised_ += Promised(frozen_prefix(), until - step_);
    step_ = until;
  }

  // Says whether the budget is met at the end if `prefix` stays frozen from now on.
  bool Reached(int prefix) const { return realised_ * (promised_ + Promised(prefix, total_steps_ - step_)) >= budget_; }

  const double budget_;
  const int64_t total_steps_;
  const std::vector<double> shares_;
  int64_t step_ = 0;
  double promised_;      // part of the job's time, so far
  double realised_ = 1;  // saving over what was promised
};

}  // namespace

std::unique_ptr<Policy> HeldToBudget(std::unique_ptr<Policy> inner, const JobShape& shape) {
  return std::make_unique<BudgetedPolicy>(std::move(inner), shape);
}

}  // namespace egeria::policy
