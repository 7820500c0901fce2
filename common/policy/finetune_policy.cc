#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// It decides at this step at the earliest, or after a fifth of a short training. Workers cannot tell what freezing
// saves without ten steps with nothing frozen, of which two at least pass while the ranks agree. It decides no later,
// since a new head's first gradients only disturb what was pretrained.
constexpr int64_t kActiveSteps = 8;

// So many steps pass first where a training that is under way becomes known.
constexpr int64_t kStepsKnown = 4;

// Ranks freeze so many steps after a decision, or fewer, since they have to agree on it.
constexpr int64_t kStepsToFreeze = 16;

int64_t FirstDecision(const JobShape& shape) {
  const int64_t most = shape.total_steps == 0 ? kActiveSteps : shape.total_steps / 5;
  return std::max(std::min(kActiveSteps, most), shape.first_step + std::min(kStepsKnown, most));
}

// A later stage is decided so many steps before it is due, a fortieth of all at most. Stages often fall on the ends of
// epochs. A prefix that has frozen by then is kept whole in the next epoch.
int64_t StepsAhead(int64_t total_steps) { return std::min(kStepsToFreeze, total_steps / 40); }

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

// A stage is a prefix that freezes once a part of the training is over.
struct Stage {
  int64_t step = 0;
  int prefix = 0;
  std::string reason;
  std::optional<int64_t> decided_at;
};

// Returns the first step at which a quarter to the power of `stage` is left of the area under the learning rates. Where
// no rates are planned, they are taken to fall in a straight line.
int64_t StepOfStage(int stage, const JobShape& shape) {
  if (HaveArea(shape.planned_learning_rates)) {
    return StepAtArea(1 - std::pow(0.25, stage), shape.planned_learning_rates, shape.total_steps);
  }
  return StepAtFraction(1 - std::pow(0.5, stage), shape.total_steps);
}

// This policy is for fine-tuning a trained model: it freezes a prefix early, and deepens it as less is left to learn. A
// prefix that is given freezes with the first observation, and stays. Otherwise the first one is that whose step shares
// add up most nearly to the budget (or to the job's, if that is less). It freezes as soon as the time of a step with
// nothing frozen has been measured. Stage i of S freezes when a part 4^-i of the area under the learning rates is left.
// It takes about i / S of what the first prefix has left active, the last module aside. Where step shares are unknown,
// parameters stand in for time, and the reason says so.
//
// It measures nothing of the model. Where somebody else thaws what it has frozen, it freezes nothing more. Thread-
// compatible.
class FinetunePolicy : public PrefixPolicy {
 public:
  FinetunePolicy(const FinetuneConfig& config, const JobShape& shape) : PrefixPolicy(shape.modules) {
    const Shares shares = SharesOf(shape);
    if (config.frozen_prefix > 0) {
      Add(shape.first_step, config.frozen_prefix, shares, "as given");
      return;
    }
    const double budget = shape.budget > 0 ? std::min(config.budget, shape.budget) : config.budget;
    const double all = ShareOfPrefix(modules() - 1, shares.values);
    const std::string first =
        absl::StrFormat("for a budget of %g %%%s", 100 * budget,
                        all < budget * (1 - 1e-9) ? ", which all but the last module do not reach" : "");
    const int first_prefix = PrefixNearestTo(budget, shares.values);
    Add(FirstDecision(shape), first_prefix, shares, first);
    if (shape.budget > 0 || shape.total_steps == 0 || all <= budget) return;
    const double frozen = ShareOfPrefix(first_prefix, shares.values);
    for (int i = 1; i < config.stages; ++i) {
      const double amount = frozen + (all - frozen) * i / config.stages;
      const int64_t step = std::max(StepOfStage(i, shape) - StepsAhead(shape.total_steps), stages_.back().step);
      Add(step, PrefixNearestTo(amount, shares.values), shares,
          absl::StrFormat("with %.2g %% of the area under the learning rates to come", 100 * std::pow(0.25, i)));
    }
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    const Stage* due = nullptr;
    for (; next_ < stages_.size() && step() >= stages_[next_].step; ++next_) {
      stages_[next_].decided_at = step();
      if (stages_[next_].prefix > frozen_prefix()) due = &stages_[next_];
    }
    return due != nullptr ? std::optional(Decide(due->prefix, due->reason)) : std::nullopt;
  }

  void Adopt(int64_t to_step, int prefix) override {
    const int before = frozen_prefix();
    PrefixPolicy::Adopt(to_step, prefix);
    // Where training begins anew at the step of a decision no rank has applied it, and it comes again.
    while (next_ > 0 && stages_[next_ - 1].decided_at >= to_step) --next_;
    const bool thawed = next_ > 0 && prefix < std::min(before, stages_[next_ - 1].prefix);
    if (thawed) next_ = stages_.size();
  }

  std::optional<int64_t> awaited_step() const override {
    return next_ < stages_.size() ? std::optional(stages_[next_].step) : std::nullopt;
  }

 private:
  void Add(int64_t step, int prefix, const Shares& shares, absl::string_view why) {
    if (!stages_.empty() && prefix <= stages_.back().prefix) return;
    stages_.push_back({step, prefix,
                       absl::StrFormat("%d of %d modules: %.1f %% %s, %s", prefix, modules(),
                                       100 * ShareOfPrefix(prefix, shares.values), shares.of, why),
                       std::nullopt});
  }

  std::vector<Stage> stages_;
  size_t next_ = 0;  // the first stage that has not been decided
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const FinetuneConfig& config, const JobShape& shape) {
  return std::make_unique<FinetunePolicy>(config, shape);
}

}  // namespace egeria::policy
