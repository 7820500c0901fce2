#include "common/policy/staged_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

constexpr int kReadings = 100;
constexpr int kMinReadings = 16;

}  // namespace

StagedPolicy::StagedPolicy(const StagedConfig& config, const JobShape& shape)
    : config_(config),
      modules_(shape.modules),
      period_(StepsOfPart(config.every, static_cast<double>(shape.total_steps))),
      first_step_(shape.first_step),
      gate_(config.threshold, config.threshold, kReadings, kMinReadings, TimeSharesOf(shape)),
      retry_(RetryAfter(first_step_)) {
  const std::vector<double> shares = TimeSharesOf(shape);
  int deepest = config.deepest_prefix > 0 ? config.deepest_prefix : shape.modules - 1;
  if (config.share > 0) deepest = SmallestPrefixReaching(config.share, shares);
  const double time = ShareOfPrefix(deepest, shares);
  for (int i = 1; i <= config.stages; ++i) {
    Stage stage;
    stage.fraction =
        config.stages == 1 ? config.begin : config.begin + (config.end - config.begin) * (i - 1) / (config.stages - 1);
    stage.step = config.area ? StepAtArea(stage.fraction, shape.planned_learning_rates, shape.total_steps)
                             : StepAtFraction(stage.fraction, shape.total_steps);
    const double part = static_cast<double>(config.stages - 1 + i) / (2 * config.stages - 1);
    stage.prefix = std::min(deepest, SmallestPrefixReaching(part * time, shares));
    stages_.push_back(stage);
  }
}

std::optional<Decision> StagedPolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  if (observation.learning_rate && std::isfinite(*observation.learning_rate) && *observation.learning_rate >= 0 &&
      rates_.Observe(step_, *observation.learning_rate)) {
    gate_.Forget();
    readings_from_ = step_;
    // What was put off waits for readings of the new rate, but not for those of the one after it.
    if (put_off_ && !std::exchange(waited_, true)) retry_ = step_ + period_;
  }
  if (observation.gradients && observation.gradients->step > readings_from_) gate_.Add(*observation.gradients);

  if (step_ < retry_) return std::nullopt;
  size_t due = done_;
  while (due < stages_.size() && stages_[due].step <= step_) ++due;
  // The deepest of the stages that are due freezes, unless something speaks against it.
  for (size_t i = due; i-- > done_;) {
    const Stage& stage = stages_[i];
    if (stage.prefix > frozen_prefix_ && Objection(stage.prefix)) continue;
    done_ = i + 1;
    PutOff(done_ < due);
    if (stage.prefix <= frozen_prefix_) return std::nullopt;
    frozen_prefix_ = stage.prefix;
    return Decision{
        step_, Action::kFreeze, frozen_prefix_,
        absl::StrFormat("stage %d of %d: %d of %d modules from %g %% of the %s on", i + 1, stages_.size(), stage.prefix,
                        modules_, 100 * stage.fraction, config_.area ? "area under the learning rates" : "steps")};
  }
  PutOff(due > done_);
  return std::nullopt;
}

void StagedPolicy::PutOff(bool put_off) {
  put_off_ = put_off;
  waited_ = false;
  if (put_off) retry_ = step_ + period_;
}

std::optional<std::string> StagedPolicy::Objection(int prefix) const {
  if (!config_.veto || prefix <= frozen_prefix_) return std::nullopt;
  return gate_.ClearSignal(frozen_prefix_, prefix);
}

std::optional<GradientMonitoring> StagedPolicy::gradient_monitoring() const {
  if (!config_.veto || done_ == stages_.size()) return std::nullopt;
  const int64_t lead = GradientLead(config_.interval_steps, kReadings, kMinReadings, period_);
  if (step_ < std::max(stages_[done_].step, retry_) - lead) return std::nullopt;
  return GradientMonitoring{config_.interval_steps, frozen_prefix_};
}

void StagedPolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
  if (step < step_) {  // training goes on from an older step
    done_ = 0;
    retry_ = RetryAfter(step);
    PutOff(false);
    rates_.Forget();
    gate_.Forget();
    readings_from_ = -1;
  }
  // What was put off is still due, unless somebody has unfrozen; and so may be what a checkpoint has not frozen.
  const bool begins_here = step <= first_step_;
  const bool awaits = config_.veto && frozen_prefix >= frozen_prefix_ && (put_off_ || begins_here);
  step_ = step;
  while (done_ < stages_.size() && stages_[done_].step < step_ && !(awaits && stages_[done_].prefix > frozen_prefix)) {
    ++done_;
  }
  frozen_prefix_ = frozen_prefix;
}

PolicyStatus StagedPolicy::status() const {
  PolicyStatus status = EmptyStatus(modules_);
  for (int module = 0; module < modules_; ++module) {
    status.modules[static_cast<size_t>(module)].snr = gate_.OfModule(module);
  }
  return status;
}

}  // namespace egeria::policy
