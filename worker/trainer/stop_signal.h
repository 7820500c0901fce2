#ifndef EGERIA_WORKER_TRAINER_STOP_SIGNAL_H_
#define EGERIA_WORKER_TRAINER_STOP_SIGNAL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/commit/process_group.h"

namespace egeria::trainer {

// Lets SIGUSR1, which a scheduler sends before a time limit, end a training at the same step on all ranks. It may reach
// any of the ranks, or all. One per process, used on the main thread.
class StopSignal {
 public:
  // Takes SIGUSR1 over where `enabled`; else it does nothing, and Agreed() is false.
  StopSignal(bool enabled, worker::ProcessGroupPtr group);

  // Whether all ranks stop after step `step`. It is a collective at every eighth step.
  // Errors: INTERNAL [STEP_FAILED] a rank has gone.
  absl::StatusOr<bool> Agreed(int64_t step);

 private:
  const bool enabled_;
  const worker::ProcessGroupPtr group_;  // null: one rank
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_STOP_SIGNAL_H_
