#ifndef EGERIA_CONTROLLER_POLICY_FINETUNE_POLICY_H_
#define EGERIA_CONTROLLER_POLICY_FINETUNE_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "controller/policy/policy.h"
#include "controller/policy/policy_config.h"

namespace egeria::policy {

// For fine-tuning of a trained model: freezes one prefix with the first observation, and leaves it at that. Which one
// is given, or is the smallest whose step shares add up to the budget; where step shares are unknown, parameters stand
// in for time, and the reason says so. Measures nothing. Thread-compatible.
class FinetunePolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  FinetunePolicy(const FinetuneConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  std::optional<Monitoring> monitoring() const override { return std::nullopt; }
  bool wants_loss() const override { return false; }
  std::optional<int64_t> awaited_step() const override {
    return done_ ? std::nullopt : std::optional<int64_t>(0);
  }
  PolicyStatus status() const override;

 private:
  const int modules_;
  int wanted_ = 0;
  std::string reason_;
  bool done_ = false;  // by this policy, or by somebody else who set the prefix
  std::optional<int64_t> decided_at_;
  int64_t step_ = 0;
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_FINETUNE_POLICY_H_
