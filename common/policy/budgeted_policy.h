#ifndef EGERIA_COMMON_POLICY_BUDGETED_POLICY_H_
#define EGERIA_COMMON_POLICY_BUDGETED_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/policy/policy_config.h"
#include "common/policy/wrapped_policy.h"

namespace egeria::policy {

// A budgeted policy is another policy that freezes no more than a budget asks for: once what was saved, and what the
// present prefix saves until the end, comes to the budget, nothing more freezes; and a decision that would go beyond it
// is cut to the smallest prefix that reaches it. With S(k) the share of a step's time that prefix k saves, by the
// modules' step shares, and r the realised saving (RealisedSaving(), 1 before it was measured; .5 to 2, beyond which
// the machine's speed has changed), at step t of T:
//
//   r * (sum over the steps up to t of S(prefix at that step) / T  +  (T - t) / T * S(k))  >=  budget.
//
// Unfreezes are the inner policy's own, and so is what it wants to know; but while nothing more is to freeze it is told
// only of what is frozen, which may have to unfreeze. Thread-compatible.
class BudgetedPolicy : public WrappedPolicy {
 public:
  // Requires a budget over 0 and known total steps in `shape`.
  BudgetedPolicy(std::unique_ptr<Policy> inner, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  std::optional<Monitoring> monitoring() const override;
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  bool wants_account() const override { return true; }

 private:
  void PassTo(int64_t step);
  // Returns the part of the job's time that is saved at its end if `prefix` stays frozen from now on, as step shares
  // promise.
  double PromisedAtTheEnd(int prefix) const;
  bool Reached(int prefix) const { return realised_ * PromisedAtTheEnd(prefix) >= budget_; }

  const double budget_;
  const int64_t total_steps_;
  const std::vector<double> shares_;
  int64_t step_ = 0;
  double promised_;      // part of the job's time, so far
  double realised_ = 1;  // saving over what was promised
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_BUDGETED_POLICY_H_
