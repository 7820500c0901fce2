#ifndef EGERIA_WORKER_AGENT_PLAN_LEDGER_H_
#define EGERIA_WORKER_AGENT_PLAN_LEDGER_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace egeria::worker {

// "From now on modules 0..frozen_prefix-1 are frozen."
struct Plan {
  PlanId id;
  Generation generation;
  int frozen_prefix = 0;
  std::string reason;
};

// The plans that this rank has received, and up to which id it has all of them (the contiguous watermark,
// the only thing that it is safe to commit on). Pure; thread-compatible.
class PlanLedger {
 public:
  // Starts after `applied`, the last plan that a checkpoint says was applied. `module_count` bounds the
  // frozen prefix of a plan.
  PlanLedger(Generation generation, PlanId applied, int module_count);

  // Takes in a plan, in any order. Errors:
  // ALREADY_EXISTS [DUPLICATE_PLAN] this id is known with the same content, or lies at or under the
  //   watermark: harmless.
  // FAILED_PRECONDITION [STALE_GENERATION] it belongs to an older or a newer generation.
  // INVALID_ARGUMENT [PLAN_CONFLICT] this id is known with other content; [BAD_PREFIX] the prefix is
  //   negative or would freeze the last module; [PLAN_TOO_FAR] more than 1,024 above the watermark.
  absl::Status Deliver(const Plan& plan);

  // Plans are of this generation from now on. It forgets those that wait.
  void TakeGeneration(Generation generation);

  // Plans up to `base` that this rank lacks are void: it does not wait for them any more.
  void SkipTo(PlanId base);

  PlanId watermark() const { return watermark_; }
  // The plan, if it has been received.
  std::optional<Plan> Find(PlanId id) const;
  // Forgets plans under `id`; they stay known as delivered.
  void Forget(PlanId id);

 private:
  // Moves the watermark over the plans that follow it without a gap.
  void Advance();

  Generation generation_;
  PlanId watermark_;
  int module_count_;
  std::map<PlanId, Plan> plans_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_PLAN_LEDGER_H_
