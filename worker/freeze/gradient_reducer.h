#ifndef EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_
#define EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "worker/commit/process_group.h"

namespace c10d {
class Reducer;
}

namespace egeria::worker {

// Keeps the replicas of a data-parallel model together, for whatever part of it is active: averages gradients
// over the ranks while the backward pass runs (torch's own reducer, rebuilt whenever the active set changes)
// and, before each forward pass, gives every rank rank 0's floating-point buffers, the running statistics of
// batch normalisation. Between steps these differ, as each rank updates them with its own batch. A world of one
// (a null group) needs none of it.
//
// Every rank must rebuild at the same step with the same parameters. A rebuilt reducer starts from the same
// state whatever came before it, so that a run that resumes and rebuilds continues bit for bit like one
// that merely rebuilds at that step.
//
// Owned by the training thread.
class GradientReducer {
 public:
  explicit GradientReducer(ProcessGroupPtr group);
  ~GradientReducer();

  // `parameters`: all that require a gradient, in forward order; `buffers`: those of the same modules. The old
  // reducer is dropped first, so that no hook of it stays on a parameter.
  // Errors: INVALID_ARGUMENT [NOTHING_TRAINABLE]; UNAVAILABLE [REDUCER_FAILED].
  absl::Status Rebuild(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers);

  // Around each forward pass that a backward pass follows. Exceptions of torch pass through.
  void BeforeForward();
  void BeforeBackward(const at::Tensor& loss);

  // Gives every rank rank 0's active buffers now. A collective. Exceptions of torch pass through.
  void SyncBuffers();

  // Bytes of gradients handed to all_reduce by this rank so far.
  int64_t bytes_reduced() const { return bytes_reduced_; }

 private:
  const ProcessGroupPtr group_;
  std::atomic<int64_t> bytes_reduced_{0};
  std::unique_ptr<c10d::Reducer> reducer_;
  std::vector<at::Tensor> buffers_;  // floating-point ones only: the counters are equal by construction
};

// Makes `tensors` equal to rank 0's, in one message per element type; null group: nothing to do.
// A collective. Exceptions of torch pass through.
void BroadcastFromRankZero(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_
