#ifndef EGERIA_COMMON_POLICY_PAYING_POLICY_H_
#define EGERIA_COMMON_POLICY_PAYING_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "common/policy/wrapped_policy.h"

namespace egeria::policy {

// A paying policy is another policy that is switched off when it can no longer earn back what its measurements have
// cost. At step t of T, with c the time of a step with nothing frozen, D the deepest prefix that may freeze and S(k)
// the share of c that prefix k saves, that is once, in three accounts in a row,
//
//   measuring - saved  >  (T - t) c S(D) r
//
// where r, how much of what S promises comes true of what is frozen now, is 1 where it is unknown (RealisedSaving()).
// The right side is the most that can still be saved: about as much is spent on waiting for a freeze as it could have
// saved. What Egeria takes with any policy, or has taken once, is not in it, since switching off would not give it
// back.
//
// Once it is off nothing more is measured, not even re-probes, and nothing more freezes; what is frozen stays so, but
// for unfreezes, which remain the inner policy's. Thread-compatible.
class PayingPolicy : public WrappedPolicy {
 public:
  // Requires known total steps in `shape`.
  PayingPolicy(std::unique_ptr<Policy> inner, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  std::optional<Monitoring> monitoring() const override;
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  bool wants_loss() const override { return !off() && inner().wants_loss(); }
  bool wants_account() const override { return !off(); }
  std::string blocked() const override { return off() ? why_off_ : inner().blocked(); }
  PolicyStatus status() const override;

 private:
  bool off() const { return !why_off_.empty(); }
  void Judge(int64_t step, const Account& account);

  const int64_t total_steps_;
  const std::vector<double> shares_;
  int in_a_row_ = 0;  // accounts by which the policy does not pay
  std::string why_off_;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_PAYING_POLICY_H_
