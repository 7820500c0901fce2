#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// So many steps pass before it freezes, to measure a step with nothing frozen. They are a fiftieth of all, but at least
// as many as workers measure before they tell of it (30, and the first few do not count). A fifth is the most.
constexpr int64_t kMinActiveSteps = 40;
constexpr int64_t kMaxActiveSteps = 64;

int64_t ActiveSteps(int64_t total_steps) {
  if (total_steps == 0) return kMaxActiveSteps;
  return std::min(std::clamp(total_steps / 50, kMinActiveSteps, kMaxActiveSteps), total_steps / 5);
}

struct Shares {
  std::vector<double> values;
  const char* of = "";
};

// Returns each module's part of what a prefix saves of a step's time, or the best guess at it.
Shares SharesOf(const JobShape& shape) {
  const size_t modules = static_cast<size_t>(shape.modules);
  const auto tells = [modules](const auto& values) {
    return values.size() == modules && std::any_of(values.begin(), values.end(), [](auto x) { return x > 0; });
  };
  if (tells(shape.step_shares)) return {shape.step_shares, "of a step's time"};
  if (!tells(shape.parameter_counts)) {
    return {TimeSharesOf(shape), "of the modules, since how long they take is unknown"};
  }
  double all = 0;
  for (const int64_t count : shape.parameter_counts) all += static_cast<double>(count);
  Shares shares{{}, "of the parameters, since how long the modules take is unknown"};
  for (const int64_t count : shape.parameter_counts) shares.values.push_back(static_cast<double>(count) / all);
  return shares;
}

// This policy is for fine-tuning a trained model: it freezes one prefix early, and leaves it at that. A prefix that is
// given freezes with the first observation. Otherwise it is the smallest whose step shares add up to the budget (or to
// the job's, if that is less). It then freezes once the time of a step with nothing frozen has been measured. Where
// step shares are unknown, parameters stand in for time, and the reason says so.
//
// With the time of its frozen steps measured, the modules that the budget did not need unfreeze, once: the smallest
// prefix k with r S(k) >= budget stays, r being the realised saving (RealisedSaving()). It never goes deeper: where a
// step's time is spent elsewhere, that would save nothing.
//
// It measures nothing of the model. Thread-compatible.
class FinetunePolicy : public PrefixPolicy {
 public:
  FinetunePolicy(const FinetuneConfig& config, const JobShape& shape)
      : PrefixPolicy(shape.modules), budget_(shape.budget > 0 ? std::min(config.budget, shape.budget) : config.budget) {
    const Shares shares = SharesOf(shape);
    shares_ = shares.values;
    settled_ = config.frozen_prefix > 0;
    wanted_ = settled_ ? config.frozen_prefix : SmallestPrefixReaching(budget_, shares_);
    const double saved = ShareOfPrefix(wanted_, shares_);
    if (settled_) {
      reason_ = absl::StrFormat("%d of %d modules from the beginning, as given: %.1f %% %s", wanted_, modules(),
                                100 * saved, shares.of);
      return;
    }
    begin_ = shape.first_step + ActiveSteps(shape.total_steps);
    reason_ = absl::StrFormat("%d of %d modules from the beginning: %.1f %% %s, for a budget of %g %%%s", wanted_,
                              modules(), 100 * saved, shares.of, 100 * budget_,
                              saved < budget_ * (1 - 1e-9) ? ", which all but the last module do not reach" : "");
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    if (done_) return observation.account ? UnfreezeWhatTheBudgetDoesNotNeed(*observation.account) : std::nullopt;
    if (step() < begin_) return std::nullopt;
    done_ = true;
    decided_at_ = step();
    return Decide(wanted_, reason_);
  }

  void Adopt(int64_t to_step, int frozen_prefix) override {
    PrefixPolicy::Adopt(to_step, frozen_prefix);
    // Where training begins anew at the step of the decision no rank has applied it, and it comes again.
    done_ = !decided_at_ || to_step > *decided_at_ || frozen_prefix > 0;
    settled_ = settled_ || done_;
  }

  bool wants_account() const override { return !settled_; }
  std::optional<int64_t> awaited_step() const override { return done_ ? std::nullopt : std::optional<int64_t>(begin_); }

 private:
  std::optional<Decision> UnfreezeWhatTheBudgetDoesNotNeed(const Account& account) {
    if (settled_ || account.frozen_prefix != frozen_prefix()) return std::nullopt;  // it has not taken effect yet
    settled_ = true;
    const std::optional<double> realised = RealisedSaving(account, shares_);
    if (!realised) return std::nullopt;
    const int before = frozen_prefix();
    const double saved = *realised * ShareOfPrefix(before, shares_);
    if (saved <= budget_) return std::nullopt;
    const int enough = SmallestPrefixReaching(budget_ / *realised, shares_);
    if (enough == before) return std::nullopt;
    return Decide(enough, absl::StrFormat("%d of %d modules save %.1f %% of a step's time as measured: for a budget "
                                          "of %g %% %d are enough",
                                          before, modules(), 100 * saved, 100 * budget_, enough));
  }

  const double budget_;  // part of a step's time
  std::vector<double> shares_;
  int wanted_ = 0;
  std::string reason_;
  int64_t begin_ = 0;     // the first step at which it may freeze
  bool done_ = false;     // it has frozen, or somebody else has set the prefix
  bool settled_ = false;  // nothing unfreezes any more
  std::optional<int64_t> decided_at_;
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const FinetuneConfig& config, const JobShape& shape) {
  return std::make_unique<FinetunePolicy>(config, shape);
}

}  // namespace egeria::policy
