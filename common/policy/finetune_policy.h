#ifndef EGERIA_COMMON_POLICY_FINETUNE_POLICY_H_
#define EGERIA_COMMON_POLICY_FINETUNE_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// This policy is for fine-tuning a trained model: it freezes one prefix early, and leaves it at that. The prefix is
// given, and freezes with the first observation; or it is the smallest whose step shares add up to the budget (or to
// the job's, if that is less), and freezes once the time of a step with nothing frozen has been measured. Where step
// shares are unknown, parameters stand in for time, and the reason says so.
//
// With the time of its frozen steps measured, the modules that the budget did not need unfreeze, once: the smallest
// prefix k with r S(k) >= budget stays, r being the realised saving (RealisedSaving()). It never goes deeper: where a
// step's time is spent elsewhere, that would save nothing.
//
// It measures nothing of the model. Thread-compatible.
class FinetunePolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  FinetunePolicy(const FinetuneConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  bool wants_account() const override { return !settled_; }
  std::optional<int64_t> awaited_step() const override { return done_ ? std::nullopt : std::optional<int64_t>(begin_); }
  PolicyStatus status() const override;

 private:
  std::optional<Decision> UnfreezeWhatTheBudgetDoesNotNeed(const Account& account);

  const int modules_;
  const double budget_;  // part of a step's time
  std::vector<double> shares_;
  int wanted_ = 0;
  std::string reason_;
  int64_t begin_ = 0;     // the first step at which it may freeze
  bool done_ = false;     // it has frozen, or somebody else has set the prefix
  bool settled_ = false;  // nothing unfreezes any more
  std::optional<int64_t> decided_at_;
  int64_t step_ = 0;
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_FINETUNE_POLICY_H_
