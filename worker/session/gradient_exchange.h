#ifndef EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_
#define EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/agent.h"
#include "worker/commit/async_all_reduce.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// Makes one GradientReading of those that the ranks have made of their own samples: a SUM all_reduce of a few doubles
// per layer module, started at one step boundary and taken at the next. With one rank nothing is exchanged: see
// IfFinite().
//
// Begin() and Finish() are called by all ranks at the same boundaries; the ranks decide that by numbers that are the
// same everywhere. A rank that has nothing to say of the step takes part all the same, and then there is no reading.
//
// It is owned by the training thread.
class GradientExchange {
 public:
  // `group` is over gloo, and null for a world of one. Others may share it who use it at the same points.
  GradientExchange(ProcessGroupPtr group, int module_count);

  // Takes what this rank knows of the step in `own`.
  void Offer(GradientReading own);

  // Starts the exchange of `step`, with what was offered for it. Errors: UNAVAILABLE [RANK_GONE].
  absl::Status Begin(const GradientRequest& request, int64_t step);

  // The reading of the exchange that was begun before. There is none if no exchange was begun, if a rank offered
  // nothing, or if a number is not finite (the step was skipped). It is missing, too, if the ranks disagree on the mean
  // gradient: nobody has averaged it, and a warning says so once.
  // Errors: those of WaitFor(); after CANCELLED and DEADLINE_EXCEEDED the call may be made again.
  absl::StatusOr<std::optional<GradientReading>> Finish(const WaitLimits& limits);

  // The reading, unless a number in it is not finite: such a step was skipped.
  static std::optional<GradientReading> IfFinite(GradientReading reading);

  // Waits for the all_reduce in flight; see AsyncAllReduce::Stop().
  absl::Status Stop(const WaitLimits& limits) { return reduction_.Stop(limits); }

 private:
  size_t ModulesFrom(ModuleIndex first) const;

  const int world_size_;
  const int module_count_;
  AsyncAllReduce reduction_;
  std::map<int64_t, GradientReading> offered_;  // the newest few, by step
  std::optional<GradientReading> begun_;        // this rank's part of the exchange in flight; empty: it has none
  bool told_ = false;                           // the warning has been given
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_
