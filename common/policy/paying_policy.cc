#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"
#include "common/policy/wrapped_policy.h"

namespace egeria::policy {
namespace {

constexpr int kAccountsInARow = 3;

// A paying policy is another policy that is switched off when it can no longer earn back what its measurements have
// cost. Let c be the time of a step with nothing frozen, D the deepest prefix that may freeze and S(k) the share of c
// that prefix k saves. The policy is switched off at step t of T once, in three accounts in a row,
//
//   measuring - saved  >  (T - t) c S(D) r
//
// where r, how much of what S promises comes true of what is frozen now, is 1 where it is unknown (RealisedSaving()).
// The right side is the most that can still be saved: about as much is spent on waiting for a freeze as it could have
// saved. The time that Egeria takes with any policy, or has taken once, is not in it, since switching off would not
// give it back.
//
// Once it is off nothing more is measured, and nothing more freezes; what is frozen stays so, but
// for unfreezes, which remain the inner policy's. Thread-compatible.
class PayingPolicy : public WrappedPolicy {
 public:
  PayingPolicy(std::unique_ptr<Policy> inner, const JobShape& shape)
      : WrappedPolicy(std::move(inner)), total_steps_(shape.total_steps), shares_(TimeSharesOf(shape)) {
    EGERIA_CHECK(total_steps_ > 0);
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    if (observation.account && !off()) Judge(observation.step, *observation.account);
    const int before = frozen_prefix();
    std::optional<Decision> decision = inner().Observe(observation);
    if (!off() || !decision || decision->action == Action::kUnfreeze) return decision;
    inner().Adopt(decision->step, before);
    return std::nullopt;
  }

  std::optional<Monitoring> monitoring() const override { return off() ? std::nullopt : inner().monitoring(); }
  std::optional<GradientMonitoring> gradient_monitoring() const override {
    return off() ? std::nullopt : inner().gradient_monitoring();
  }
  bool wants_loss() const override { return !off() && inner().wants_loss(); }
  bool wants_account() const override { return !off(); }
  std::string blocked() const override { return off() ? why_off_ : inner().blocked(); }

 private:
  bool off() const { return !why_off_.empty(); }

  void Judge(int64_t step, const Account& account) {
    const double remaining = static_cast<double>(std::max<int64_t>(0, total_steps_ - step));
    const int deepest = static_cast<int>(shares_.size()) - 1;
    const double realised = RealisedSaving(account, shares_).value_or(1);
    const double most = remaining * account.active_step_seconds * ShareOfPrefix(deepest, shares_) * realised;
    if (account.measuring_seconds - account.saved_seconds <= most) {
      in_a_row_ = 0;
      return;
    }
    if (++in_a_row_ < kAccountsInARow) return;
    why_off_ = absl::StrFormat(
        "[DOES_NOT_PAY] by step %d measuring has taken %.3g s and freezing saved %.3g s, and the %.0f steps left can "
        "save %.3g s at most: nothing more is measured or frozen",
        step, account.measuring_seconds, account.saved_seconds, remaining, most);
  }

  const int64_t total_steps_;
  const std::vector<double> shares_;
  int in_a_row_ = 0;  // accounts by which the policy does not pay
  std::string why_off_;
};

}  // namespace

std::unique_ptr<Policy> SwitchedOffUnlessItPays(std::unique_ptr<Policy> inner, const JobShape& shape) {
  return std::make_unique<PayingPolicy>(std::move(inner), shape);
}

}  // namespace egeria::policy
