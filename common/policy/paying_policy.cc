#include "common/policy/paying_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr int kAccountsInARow = 3;

}  // namespace

PayingPolicy::PayingPolicy(std::unique_ptr<Policy> inner, const JobShape& shape)
    : WrappedPolicy(std::move(inner)), total_steps_(shape.total_steps), shares_(TimeSharesOf(shape)) {
  EGERIA_CHECK(total_steps_ > 0);
}

std::optional<Decision> PayingPolicy::Observe(const Observation& observation) {
  if (observation.account && !off()) Judge(observation.step, *observation.account);
  const int before = frozen_prefix();
  std::optional<Decision> decision = inner().Observe(observation);
  if (!off() || !decision || decision->action == Action::kUnfreeze) return decision;
  inner().Adopt(decision->step, before);
  return std::nullopt;
}

void PayingPolicy::Judge(int64_t step, const Account& account) {
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
      "save %.3g s at "
      "most: nothing more is measured or frozen",
      step, account.measuring_seconds, account.saved_seconds, remaining, most);
}

std::optional<Monitoring> PayingPolicy::monitoring() const { return off() ? std::nullopt : inner().monitoring(); }

std::optional<GradientMonitoring> PayingPolicy::gradient_monitoring() const {
  return off() ? std::nullopt : inner().gradient_monitoring();
}

PolicyStatus PayingPolicy::status() const {
  PolicyStatus status = inner().status();
  status.blocked = blocked();
  return status;
}

}  // namespace egeria::policy
