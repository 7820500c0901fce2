#ifndef EGERIA_COMMON_POLICY_PLASTICITY_POLICY_H_
#define EGERIA_COMMON_POLICY_PLASTICITY_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/bootstrapping.h"
#include "common/policy/learning_rate_watch.h"
#include "common/policy/module_history.h"
#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// The paper's rule (section 4.2, Algorithm 1): freezes the frontmost active module when its plasticity has
// become stationary, and unfreezes all when the learning rate has dropped. docs/rule.md has the equations and
// settles what the paper leaves open.
//
// An observation is evaluated in the order learning rate, unfreeze steps, loss (or, in a job that reports none, the
// step), plasticity. A number that is not finite, or over 1e100 in magnitude (of which sums could become infinite), is
// as if not observed; so is a negative learning rate. A plasticity without a module is the frontmost one's.
// Thread-compatible.
class PlasticityPolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  PlasticityPolicy(const PlasticityConfig& config, const JobShape& shape)
      : PlasticityPolicy(config, shape, plasticity::ActivationMetric::kSpLoss) {}
  // This is the same rule on Skip-Conv's metric.
  PlasticityPolicy(const ActnormConfig& config, const JobShape& shape)
      : PlasticityPolicy(config, shape, plasticity::ActivationMetric::kActivationNorm) {}

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  std::optional<Monitoring> monitoring() const override;
  bool wants_loss() const override { return config_.bootstrap && bootstrapping_.wants_loss(); }
  std::optional<int64_t> awaited_step() const override {
    return config_.bootstrap ? bootstrapping_.awaited_step() : std::nullopt;
  }
  PolicyStatus status() const override;

 private:
  PlasticityPolicy(const PlasticityConfig& config, const JobShape& shape, plasticity::ActivationMetric metric);

  bool bootstrapping() const { return config_.bootstrap && !bootstrapping_.over(); }
  std::optional<Decision> ObserveLearningRate(double rate);
  std::optional<Decision> PassUnfreezeSteps();
  std::optional<Decision> ObservePlasticity(double plasticity);
  Decision UnfreezeAll(std::string reason);
  ModuleHistory FreshHistory() const;

  const PlasticityConfig config_;
  const plasticity::ActivationMetric metric_;
  const int modules_;
  int window_;        // W, halved by each drop of the learning rate
  int64_t step_ = 0;  // newest
  int frozen_prefix_ = 0;
  Bootstrapping bootstrapping_;
  LearningRateWatch learning_rate_;
  size_t next_unfreeze_ = 0;                 // index into config_.unfreeze_steps
  std::optional<ModuleHistory> history_;     // the frontmost module's
  std::vector<ModuleStatus> module_status_;  // frozen modules are as they were when they froze
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_PLASTICITY_POLICY_H_
