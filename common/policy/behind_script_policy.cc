#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "common/policy/wrapped_policy.h"

namespace egeria::policy {
namespace {

// To the inner policy, what the training's script has frozen by itself is as if somebody had frozen it here, so that it
// begins behind that. Where it thaws any of it, everything of its own thaws, and the script's part is as it was.
// Thread-compatible.
class BehindScriptPolicy : public WrappedPolicy {
 public:
  explicit BehindScriptPolicy(std::unique_ptr<Policy> inner)
      : WrappedPolicy(std::move(inner)), prefix_(WrappedPolicy::frozen_prefix()) {}

  std::optional<Decision> Observe(const Observation& observation) override {
    if (observation.frozen_by_script) {
      script_ = *observation.frozen_by_script;
      Begin(observation.step);
    }
    std::optional<Decision> decision = inner().Observe(observation);
    if (!decision) return std::nullopt;
    if (decision->frozen_prefix <= script_) decision->frozen_prefix = 0;
    const int before = std::exchange(prefix_, decision->frozen_prefix);
    Begin(decision->step);
    if (prefix_ == before) return std::nullopt;
    decision->action = prefix_ > before ? Action::kFreeze : Action::kUnfreeze;
    return decision;
  }

  void Adopt(int64_t step, int frozen_prefix) override {
    prefix_ = frozen_prefix;
    inner().Adopt(step, std::max(prefix_, script_));
  }

  int frozen_prefix() const override { return prefix_; }

 private:
  void Begin(int64_t step) {
    if (const int frozen = std::max(prefix_, script_); inner().frozen_prefix() != frozen) inner().Adopt(step, frozen);
  }

  int prefix_;
  int script_ = 0;
};

}  // namespace

std::unique_ptr<Policy> BeginningBehindScript(std::unique_ptr<Policy> inner) {
  return std::make_unique<BehindScriptPolicy>(std::move(inner));
}

}  // namespace egeria::policy
