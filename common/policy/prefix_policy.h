#ifndef EGERIA_COMMON_POLICY_PREFIX_POLICY_H_
#define EGERIA_COMMON_POLICY_PREFIX_POLICY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/policy/policy.h"

namespace egeria::policy {

// A prefix policy remembers the newest step that it has seen and the prefix that it has decided or adopted. It has
// nothing to say about single modules, unless a subclass does. Thread-compatible.
class PrefixPolicy : public Policy {
 public:
  void Adopt(int64_t step, int frozen_prefix) override {
    EGERIA_CHECK(frozen_prefix >= 0 && frozen_prefix < modules_);
    step_ = step;
    frozen_prefix_ = frozen_prefix;
  }
  int frozen_prefix() const final { return frozen_prefix_; }
  PolicyStatus status() const override {
    PolicyStatus status;
    status.blocked = blocked();
    status.advice = advice();
    status.modules.resize(static_cast<size_t>(modules_));
    return status;
  }

 protected:
  explicit PrefixPolicy(int modules) : modules_(modules) { EGERIA_CHECK(modules >= 2); }

  void PassTo(int64_t step) { step_ = std::max(step_, step); }

  // Decides that modules 0..prefix-1 are frozen from now on.
  Decision Decide(int prefix, std::string reason) {
    const Action action = prefix > frozen_prefix_ ? Action::kFreeze : Action::kUnfreeze;
    frozen_prefix_ = prefix;
    return {step_, action, prefix, std::move(reason)};
  }

  int modules() const { return modules_; }
  int64_t step() const { return step_; }
  bool AllFrozen() const { return frozen_prefix_ == modules_ - 1; }

 private:
  const int modules_;
  int64_t step_ = 0;
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_PREFIX_POLICY_H_
