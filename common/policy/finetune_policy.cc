#include "common/policy/finetune_policy.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// So many steps pass before it freezes, to measure a step with nothing frozen: a fiftieth of the steps, but as many as
// workers measure before they tell of it (30, and the first few do not count), and no more than a fifth.
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

}  // namespace

FinetunePolicy::FinetunePolicy(const FinetuneConfig& config, const JobShape& shape)
    : modules_(shape.modules), budget_(shape.budget > 0 ? std::min(config.budget, shape.budget) : config.budget) {
  const Shares shares = SharesOf(shape);
  shares_ = shares.values;
  if (config.frozen_prefix > 0) {
    wanted_ = config.frozen_prefix;
    reason_ = absl::StrFormat("%d of %d modules from the beginning, as given: %.1f %% %s", wanted_, modules_,
                              100 * ShareOfPrefix(wanted_, shares.values), shares.of);
    settled_ = true;
    return;
  }
  wanted_ = SmallestPrefixReaching(budget_, shares.values);
  begin_ = shape.first_step + ActiveSteps(shape.total_steps);
  const double saved = ShareOfPrefix(wanted_, shares.values);
  reason_ = absl::StrFormat("%d of %d modules from the beginning: %.1f %% %s, for a budget of %g %%%s", wanted_,
                            modules_, 100 * saved, shares.of, 100 * budget_,
                            saved < budget_ * (1 - 1e-9) ? ", which all but the last module do not reach" : "");
}

std::optional<Decision> FinetunePolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  if (done_) return observation.account ? UnfreezeWhatTheBudgetDoesNotNeed(*observation.account) : std::nullopt;
  if (step_ < begin_) return std::nullopt;
  done_ = true;
  frozen_prefix_ = wanted_;
  decided_at_ = step_;
  return Decision{step_, Action::kFreeze, wanted_, reason_};
}

std::optional<Decision> FinetunePolicy::UnfreezeWhatTheBudgetDoesNotNeed(const Account& account) {
  if (settled_ || account.frozen_prefix != frozen_prefix_) return std::nullopt;  // it has not taken effect yet
  settled_ = true;
  const std::optional<double> realised = RealisedSaving(account, shares_);
  if (!realised) return std::nullopt;
  const double saved = *realised * ShareOfPrefix(frozen_prefix_, shares_);
  if (saved <= budget_) return std::nullopt;
  const int before = std::exchange(frozen_prefix_, SmallestPrefixReaching(budget_ / *realised, shares_));
  if (frozen_prefix_ == before) return std::nullopt;
  return Decision{
      step_, Action::kUnfreeze, frozen_prefix_,
      absl::StrFormat("%d of %d modules save %.1f %% of a step's time as measured: for a budget of %g %% %d "
                      "are enough",
                      before, modules_, 100 * saved, 100 * budget_, frozen_prefix_)};
}

void FinetunePolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
  step_ = step;
  frozen_prefix_ = frozen_prefix;
  // Where training begins anew at the step of the decision no rank has applied it, and it comes again.
  done_ = !decided_at_ || step > *decided_at_ || frozen_prefix > 0;
  settled_ = settled_ || done_;
}

PolicyStatus FinetunePolicy::status() const { return EmptyStatus(modules_); }

}  // namespace egeria::policy
