#include "worker/agent/plan_ledger.h"

#include <algorithm>

#include "common/base/status.h"

namespace egeria::worker {
namespace {

// How far plans may run ahead of the watermark: it bounds what a confused controller can make us keep.
constexpr int64_t kMaxAhead = 1024;

}  // namespace

PlanLedger::PlanLedger(Generation generation, PlanId applied, int module_count)
    : generation_(generation), watermark_(applied), module_count_(module_count) {}

absl::Status PlanLedger::Deliver(const Plan& plan) {
  if (plan.generation != generation_) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "plan ", plan.id.value(),
                      " is of generation ", plan.generation.value(), ", this is ", generation_.value());
  }
  if (plan.frozen_prefix < 0 || plan.frozen_prefix >= module_count_) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PREFIX", "plan ", plan.id.value(), " freezes ",
                      plan.frozen_prefix, " of ", module_count_, " modules; the last one never freezes");
  }
  const auto known = plans_.find(plan.id);
  if (known != plans_.end() && known->second.frozen_prefix != plan.frozen_prefix) {
    return NamedError(absl::StatusCode::kInvalidArgument, "PLAN_CONFLICT", "plan ", plan.id.value(), " freezes ",
                      plan.frozen_prefix, " modules, and was received before with ", known->second.frozen_prefix);
  }
  if (known != plans_.end() || plan.id <= watermark_) {
    return NamedError(absl::StatusCode::kAlreadyExists, "DUPLICATE_PLAN", "plan ", plan.id.value(), " is known");
  }
  if (plan.id.value() - watermark_.value() > kMaxAhead) {
    return NamedError(absl::StatusCode::kInvalidArgument, "PLAN_TOO_FAR", "plan ", plan.id.value(), " is more than ",
                      kMaxAhead, " above the watermark ", watermark_.value());
  }
  plans_.emplace(plan.id, plan);
  Advance();
  return absl::OkStatus();
}

void PlanLedger::TakeGeneration(Generation generation) {
  if (generation == generation_) return;
  generation_ = generation;
  plans_.erase(plans_.upper_bound(watermark_), plans_.end());
}

void PlanLedger::SkipTo(PlanId base) {
  watermark_ = std::max(watermark_, base);
  Advance();
}

void PlanLedger::Advance() {
  while (plans_.contains(watermark_.next())) watermark_ = watermark_.next();
}

std::optional<Plan> PlanLedger::Find(PlanId id) const {
  const auto found = plans_.find(id);
  if (found == plans_.end()) return std::nullopt;
  return found->second;
}

void PlanLedger::Forget(PlanId id) { plans_.erase(plans_.begin(), plans_.lower_bound(id)); }

}  // namespace egeria::worker
