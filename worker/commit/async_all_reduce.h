#ifndef EGERIA_WORKER_COMMIT_ASYNC_ALL_REDUCE_H_
#define EGERIA_WORKER_COMMIT_ASYNC_ALL_REDUCE_H_

#include <chrono>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// Runs one all_reduce at a time on a group, started at one step boundary and taken at a later one. Every rank must
// start and finish it at the same points, as collectives of a group are told apart by their order.
//
// It is owned by the training thread. Stop() must come before the destructor, which would wait for one in flight.
class AsyncAllReduce {
 public:
  explicit AsyncAllReduce(ProcessGroupPtr group) : group_(std::move(group)) {}
  AsyncAllReduce(const AsyncAllReduce&) = delete;
  AsyncAllReduce& operator=(const AsyncAllReduce&) = delete;

  bool in_flight() const { return work_ != nullptr; }

  // Reduces `value`, a host tensor, in place. None may be in flight.
  // Errors: UNAVAILABLE [RANK_GONE] the group has failed.
  absl::Status Start(at::Tensor value, c10d::ReduceOp operation);

  // Waits for the one in flight; value() is the result then. Errors: those of WaitFor(); after CANCELLED and
  // DEADLINE_EXCEEDED it is still in flight.
  absl::Status Finish(const WaitLimits& limits);
  const at::Tensor& value() const { return value_; }

  // Waits for what is in flight, if anything is. What does not end within the limits is left behind, with the group:
  // the group's destructor would wait for it. It is idempotent. Errors: as Finish().
  absl::Status Stop(const WaitLimits& limits);

 private:
  const ProcessGroupPtr group_;
  at::Tensor value_;
  c10::intrusive_ptr<c10d::Work> work_;  // null: none in flight
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_ASYNC_ALL_REDUCE_H_
