#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"
#include "common/policy/rules/rate_changes.h"
#include "common/policy/rules/snr_gate.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr int kReadings = 100;
constexpr int kMinReadings = 16;

struct Stage {
  int64_t step = 0;
  double fraction = 0;
  int prefix = 0;
};

// Returns the stages, which rise.
std::vector<Stage> StagesOf(const StagedConfig& config, const JobShape& shape) {
  const std::vector<double> shares = TimeSharesOf(shape);
  int deepest = config.deepest_prefix > 0 ? config.deepest_prefix : shape.modules - 1;
  if (config.share > 0) deepest = SmallestPrefixReaching(config.share, shares);
  const double time = ShareOfPrefix(deepest, shares);
  std::vector<Stage> stages;
  for (int i = 1; i <= config.stages; ++i) {
    Stage stage;
    stage.fraction =
        config.stages == 1 ? config.begin : config.begin + (config.end - config.begin) * (i - 1) / (config.stages - 1);
    stage.step = config.area ? StepAtArea(stage.fraction, shape.planned_learning_rates, shape.total_steps)
                             : StepAtFraction(stage.fraction, shape.total_steps);
    const double part = static_cast<double>(config.stages - 1 + i) / (2 * config.stages - 1);
    stage.prefix = std::min(deepest, SmallestPrefixReaching(part * time, shares));
    stages.push_back(stage);
  }
  return stages;
}

// A staged policy is a clock: it freezes ever deeper prefixes at given parts of the training, the first of them deep
// already. Stage i = 1..S comes at begin + (end - begin) (i - 1) / (S - 1) of the steps, or of the area under the
// learning rates. It freezes the smallest prefix that takes (S - 1 + i) / (2 S - 1) of the time of the deepest one.
// With S = 3 stages that is 3/5, 4/5 and all of it. Where gradients are told of and clearly carry a signal, a stage is
// put off, or a former one with a shallower prefix comes in its place. It needs no reference. Thread-compatible.
class StagedPolicy : public PrefixPolicy {
 public:
  StagedPolicy(const StagedConfig& config, const JobShape& shape)
      : PrefixPolicy(shape.modules),
        config_(config),
        period_(StepsOfPart(config.every, static_cast<double>(shape.total_steps))),
        first_step_(shape.first_step),
        stages_(StagesOf(config, shape)),
        gate_(config.threshold, config.threshold, kReadings, kMinReadings, TimeSharesOf(shape)),
        retry_(RetryAfter(first_step_)) {}

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    const std::optional<double>& rate = observation.learning_rate;
    if (rate && std::isfinite(*rate) && *rate >= 0 && rates_.Observe(step(), *rate)) {
      gate_.Forget();
      readings_from_ = step();
      // A stage that was put off waits for readings of the new rate, but not for those of the one after it.
      if (put_off_ && !std::exchange(waited_, true)) retry_ = step() + period_;
    }
    if (observation.gradients && observation.gradients->step > readings_from_) gate_.Add(*observation.gradients);
    return step() < retry_ ? std::nullopt : FreezeWhatIsDue();
  }

  void Adopt(int64_t to_step, int prefix) override {
    if (to_step < step()) {  // training goes on from an older step
      done_ = 0;
      retry_ = RetryAfter(to_step);
      PutOff(false);
      rates_.Forget();
      gate_.Forget();
      readings_from_ = -1;
    }
    // A stage that was put off is still due, unless somebody has unfrozen; and so may be what a checkpoint has not
    // frozen.
    const bool begins_here = to_step <= first_step_;
    const bool awaits = config_.veto && prefix >= frozen_prefix() && (put_off_ || begins_here);
    PrefixPolicy::Adopt(to_step, prefix);
    while (done_ < stages_.size() && stages_[done_].step < to_step && !(awaits && stages_[done_].prefix > prefix)) {
      ++done_;
    }
  }

  std::optional<GradientMonitoring> gradient_monitoring() const override {
    if (!config_.veto || done_ == stages_.size()) return std::nullopt;
    const int64_t lead = GradientLead(config_.interval_steps, kReadings, kMinReadings, period_);
    if (step() < std::max(stages_[done_].step, retry_) - lead) return std::nullopt;
    return GradientMonitoring{config_.interval_steps, frozen_prefix()};
  }

  // Objects only to a freeze of what clearly carries a signal, where the config has the veto.
  std::optional<std::string> Objection(int prefix) const override {
    if (!config_.veto || prefix <= frozen_prefix()) return std::nullopt;
    return gate_.ClearSignal(frozen_prefix(), prefix);
  }

  PolicyStatus status() const override { return gate_.With(PrefixPolicy::status()); }

 private:
  // The deepest of the stages that are due freezes, unless something speaks against it.
  std::optional<Decision> FreezeWhatIsDue() {
    size_t due = done_;
    while (due < stages_.size() && stages_[due].step <= step()) ++due;
    for (size_t i = due; i-- > done_;) {
      const Stage& stage = stages_[i];
      if (stage.prefix > frozen_prefix() && Objection(stage.prefix)) continue;
      done_ = i + 1;
      PutOff(done_ < due);
      if (stage.prefix <= frozen_prefix()) return std::nullopt;
      return Decide(stage.prefix, absl::StrFormat("stage %d of %d: %d of %d modules from %g %% of the %s on", i + 1,
                                                  stages_.size(), stage.prefix, modules(), 100 * stage.fraction,
                                                  config_.area ? "area under the learning rates" : "steps"));
    }
    PutOff(due > done_);
    return std::nullopt;
  }

  // Says whether something speaks against a stage that is due.
  void PutOff(bool put_off) {
    put_off_ = put_off;
    waited_ = false;
    if (put_off) retry_ = step() + period_;
  }

  // Nothing is tried for a period of a job that begins or goes on at `from_step`, since nobody was asked for readings
  // before.
  int64_t RetryAfter(int64_t from_step) const { return config_.veto && from_step > 0 ? from_step + period_ : 0; }

  const StagedConfig config_;
  const int64_t period_;      // steps until a stage that was put off is tried again
  const int64_t first_step_;  // at which the job began
  const std::vector<Stage> stages_;
  RateChanges rates_;
  SnrGate gate_;
  int64_t retry_ = 0;           // nothing is tried before this step
  int64_t readings_from_ = -1;  // gradients of this step and before say nothing of now
  bool put_off_ = false;        // whether a stage is due and waits
  bool waited_ = false;         // whether it has waited for readings of another rate already
  size_t done_ = 0;             // stages that need not be tried any more
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const StagedConfig& config, const JobShape& shape) {
  return std::make_unique<StagedPolicy>(config, shape);
}

}  // namespace egeria::policy
