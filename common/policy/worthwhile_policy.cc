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

// The time of a step becomes known after so many of them. A freeze whose worth is unknown needs as many steps to come.
constexpr int64_t kStepsOfUnknownWorth = 30;
// Where step shares are not measured, as of a compiled model, all modules together count for this part of a step.
// Frozen ones still make their forward pass, which is about a third of it.
constexpr double kUnmeasuredShare = 2.0 / 3;

// A worthwhile policy is another policy whose freezes are left out where they cost more than they can save. A freeze
// of prefix k over prefix j at step t of T is left out where
//
//   (T - t) c (S(k) - S(j)) r  <=  the time of a switch, recompilation included, or of one step if that is more.
//
// c is the time of a step with nothing frozen, and S(k) the share of it that prefix k saves. r is the part of that
// share which comes true: RealisedSaving(), or 1 where it is unknown.
//
// To the inner policy it is as if somebody had unfrozen it at once, so that it may propose it again. Unfreezes are the
// inner policy's own. Thread-compatible.
class WorthwhilePolicy : public WrappedPolicy {
 public:
  WorthwhilePolicy(std::unique_ptr<Policy> inner, const JobShape& shape)
      : WrappedPolicy(std::move(inner)), total_steps_(shape.total_steps), shares_(TimeSharesOf(shape)) {
    EGERIA_CHECK(total_steps_ > 0);
    if (shares_ != shape.step_shares) {
      for (double& share : shares_) share *= kUnmeasuredShare;
    }
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    if (observation.account) account_ = observation.account;
    const int before = frozen_prefix();
    std::optional<Decision> decision = inner().Observe(observation);
    if (!decision || decision->frozen_prefix <= before) return decision;
    why_not_ = WhyNot(*decision, before);
    if (why_not_.empty()) return decision;
    inner().Adopt(decision->step, before);
    return std::nullopt;
  }

  bool wants_account() const override { return true; }
  std::string blocked() const override { return why_not_.empty() ? inner().blocked() : why_not_; }

 private:
  // Says why a freeze is left out; empty where it is not.
  std::string WhyNot(const Decision& decision, int before) const {
    const int64_t left = std::max<int64_t>(0, total_steps_ - decision.step);
    if (!account_) {
      if (left >= kStepsOfUnknownWorth) return "";
      return absl::StrFormat("[NOT_WORTH_IT] only %d steps are left, and it is not known yet what a step takes", left);
    }
    const double step = account_->active_step_seconds;
    const double cost = std::max(account_->switch_seconds, step);
    const double share = ShareOfPrefix(decision.frozen_prefix, shares_) - ShareOfPrefix(before, shares_);
    const double gain = static_cast<double>(left) * step * share * RealisedSaving(*account_, shares_).value_or(1);
    if (gain > cost) return "";
    return absl::StrFormat(
        "[NOT_WORTH_IT] freezing %d layer modules would save %.2g s in the %d steps that are left, and a switch takes "
        "%.2g s",
        decision.frozen_prefix, gain, left, cost);
  }

  const int64_t total_steps_;
  std::vector<double> shares_;
  std::optional<Account> account_;  // the newest
  std::string why_not_;
};

}  // namespace

std::unique_ptr<Policy> FreezingOnlyWhatIsWorthIt(std::unique_ptr<Policy> inner, const JobShape& shape) {
  return std::make_unique<WorthwhilePolicy>(std::move(inner), shape);
}

}  // namespace egeria::policy
