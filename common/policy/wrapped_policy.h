#ifndef EGERIA_COMMON_POLICY_WRAPPED_POLICY_H_
#define EGERIA_COMMON_POLICY_WRAPPED_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/policy/policy.h"

namespace egeria::policy {

// A wrapped policy does what another one does, but for what a subclass changes. Thread-compatible.
class WrappedPolicy : public Policy {
 public:
  explicit WrappedPolicy(std::unique_ptr<Policy> inner) : inner_(std::move(inner)) {}

  std::optional<Decision> Observe(const Observation& observation) override { return inner_->Observe(observation); }
  void Adopt(int64_t step, int frozen_prefix) override { inner_->Adopt(step, frozen_prefix); }
  int frozen_prefix() const override { return inner_->frozen_prefix(); }
  std::optional<Monitoring> monitoring() const override { return inner_->monitoring(); }
  std::optional<GradientMonitoring> gradient_monitoring() const override { return inner_->gradient_monitoring(); }
  std::optional<std::string> Objection(int prefix) const override { return inner_->Objection(prefix); }
  bool wants_loss() const override { return inner_->wants_loss(); }
  bool wants_account() const override { return inner_->wants_account(); }
  std::optional<int64_t> awaited_step() const override { return inner_->awaited_step(); }
  std::string blocked() const override { return inner_->blocked(); }
  std::string advice() const override { return inner_->advice(); }
  PolicyStatus status() const override {
    PolicyStatus status = inner_->status();
    status.blocked = blocked();
    return status;
  }

 protected:
  Policy& inner() { return *inner_; }
  const Policy& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Policy> inner_;
};

// Returns a policy that freezes no more than the shape's budget asks for. Requires a budget over 0 and known total
// steps.
std::unique_ptr<Policy> HeldToBudget(std::unique_ptr<Policy> inner, const JobShape& shape);

// Returns a policy that is switched off when it can no longer earn back what its measurements have cost. Requires known
// total steps.
std::unique_ptr<Policy> SwitchedOffUnlessItPays(std::unique_ptr<Policy> inner, const JobShape& shape);

// Returns a policy whose freezes are left out where a switch costs more than they can save until the end. Requires
// known total steps.
std::unique_ptr<Policy> FreezingOnlyWhatIsWorthIt(std::unique_ptr<Policy> inner, const JobShape& shape);

// Returns a policy that begins behind the modules that the training's script has frozen by itself.
std::unique_ptr<Policy> BeginningBehindScript(std::unique_ptr<Policy> inner);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_WRAPPED_POLICY_H_
