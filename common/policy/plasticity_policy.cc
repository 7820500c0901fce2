#include "common/policy/plasticity_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr int kSmallestWindow = 3;
constexpr double kLargestMagnitude = 1e100;

bool IsUsable(const std::optional<double>& value) {
  return value && std::abs(*value) <= kLargestMagnitude;  // false for NaN
}

}  // namespace

PlasticityPolicy::PlasticityPolicy(const PlasticityConfig& config, const JobShape& shape,
                                   plasticity::ActivationMetric metric)
    : config_(config),
      metric_(metric),
      modules_(shape.modules),
      window_(config.window),
      bootstrapping_(shape.losses_reported ? Bootstrapping(config.interval_steps)
                                           : Bootstrapping::WithoutLosses(config.interval_steps, shape.first_step)),
      learning_rate_(config.learning_rate_drop, config.learning_rate_rise),
      history_(FreshHistory()),
      module_status_(static_cast<size_t>(shape.modules)) {
  EGERIA_CHECK(modules_ >= 2);
}

std::optional<Decision> PlasticityPolicy::Observe(const Observation& observation) {
  step_ = std::max(step_, observation.step);
  std::optional<Decision> decision;
  if (IsUsable(observation.learning_rate) && *observation.learning_rate >= 0) {
    decision = ObserveLearningRate(*observation.learning_rate);
  }
  if (std::optional<Decision> passed = PassUnfreezeSteps()) decision = std::move(passed);
  if (IsUsable(observation.loss) && observation.step >= 0 && wants_loss()) {
    bootstrapping_.Observe(observation.step, *observation.loss);
  }
  bootstrapping_.Pass(observation.step);
  if (IsUsable(observation.plasticity) && observation.module.value_or(frozen_prefix_) == frozen_prefix_ &&
      !bootstrapping()) {
    // After an unfreeze this is the first reading of a fresh history, which cannot freeze.
    std::optional<Decision> freeze = ObservePlasticity(*observation.plasticity);
    if (freeze) decision = std::move(freeze);
  }
  return decision;
}

std::optional<Decision> PlasticityPolicy::ObserveLearningRate(double rate) {
  const std::optional<double> reference = learning_rate_.reference();
  const std::optional<double> minimum = learning_rate_.minimum();
  switch (learning_rate_.Observe(rate, frozen_prefix_ > 0)) {
    case LearningRateWatch::Change::kNone: return std::nullopt;
    case LearningRateWatch::Change::kDrop: {
      const int window_before = window_;
      window_ = std::max(kSmallestWindow, window_ / 2);
      return UnfreezeAll(absl::StrFormat(
          "learning rate %.4g is at or under 1/%g of the %.4g at the first freeze: all modules unfreeze, "
          "window %d -> %d",
          rate, config_.learning_rate_drop, *reference, window_before, window_));
    }
    case LearningRateWatch::Change::kRise:
      return UnfreezeAll(absl::StrFormat(
          "learning rate %.4g is at or over %g times its minimum of %.4g since the first freeze: all modules "
          "unfreeze",
          rate, config_.learning_rate_rise, *minimum));
  }
  return std::nullopt;
}

std::optional<Decision> PlasticityPolicy::PassUnfreezeSteps() {
  std::optional<int64_t> passed;
  while (next_unfreeze_ < config_.unfreeze_steps.size() && config_.unfreeze_steps[next_unfreeze_] <= step_) {
    passed = config_.unfreeze_steps[next_unfreeze_++];
  }
  if (!passed || frozen_prefix_ == 0) return std::nullopt;
  return UnfreezeAll(absl::StrCat("step ", *passed, " is a given unfreeze step: all modules unfreeze"));
}

std::optional<Decision> PlasticityPolicy::ObservePlasticity(double plasticity) {
  if (!history_->Add(plasticity) || frozen_prefix_ == modules_ - 1) return std::nullopt;
  const ModuleStatus& status = history_->status();
  Decision decision;
  decision.step = step_;
  decision.action = Action::kFreeze;
  decision.frozen_prefix = frozen_prefix_ + 1;
  decision.reason = absl::StrFormat("module %d: %s %.3g under %g %% of the initial %.3g for %d readings",
                                    frozen_prefix_, config_.signed_slope ? "slope" : "|slope|",
                                    config_.signed_slope ? *status.slope : std::abs(*status.slope),
                                    100 * config_.tolerance, history_->initial_slope(), status.consecutive);
  module_status_[static_cast<size_t>(frozen_prefix_)] = status;
  frozen_prefix_ += 1;
  history_.emplace(FreshHistory());
  learning_rate_.NoteFrozen();
  return decision;
}

Decision PlasticityPolicy::UnfreezeAll(std::string reason) {
  frozen_prefix_ = 0;
  history_.emplace(FreshHistory());
  module_status_.assign(static_cast<size_t>(modules_), ModuleStatus());
  learning_rate_.NoteAllActive();
  return {step_, Action::kUnfreeze, 0, std::move(reason)};
}

ModuleHistory PlasticityPolicy::FreshHistory() const {
  return ModuleHistory(window_, config_.tolerance, config_.signed_slope);
}

void PlasticityPolicy::Adopt(int64_t step, int frozen_prefix) {
  EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
  if (step < step_) {  // resumed from an older checkpoint: what lies between is to come once more
    bootstrapping_.Restart();
    next_unfreeze_ = 0;
  }
  step_ = step;
  // What was due before this step had its effect on the prefix that is adopted.
  while (next_unfreeze_ < config_.unfreeze_steps.size() && config_.unfreeze_steps[next_unfreeze_] < step_) {
    ++next_unfreeze_;
  }
  module_status_[static_cast<size_t>(frozen_prefix_)] = history_->status();
  frozen_prefix_ = frozen_prefix;
  history_.emplace(FreshHistory());
  for (int module = frozen_prefix; module < modules_; ++module) {
    module_status_[static_cast<size_t>(module)] = ModuleStatus();
  }
  if (frozen_prefix > 0) {
    learning_rate_.NoteFrozen();
  } else {
    learning_rate_.NoteAllActive();
  }
}

std::optional<Monitoring> PlasticityPolicy::monitoring() const {
  if (bootstrapping() || frozen_prefix_ == modules_ - 1) return std::nullopt;
  return Monitoring{frozen_prefix_, config_.interval_steps, config_.batch_size, window_, metric_};
}

PolicyStatus PlasticityPolicy::status() const {
  PolicyStatus status;
  status.bootstrapping = bootstrapping();
  status.modules = module_status_;
  status.modules[static_cast<size_t>(frozen_prefix_)] = history_->status();
  return status;
}

}  // namespace egeria::policy
