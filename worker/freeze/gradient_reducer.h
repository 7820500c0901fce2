#ifndef EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_
#define EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
// It is owned by the training thread.
class GradientReducer {
 public:
  explicit GradientReducer(ProcessGroupPtr group);
  ~GradientReducer();

  // A Prepared reducer averages the gradients of one active set. Its hooks on the parameters go with it.
  struct Prepared {
    Prepared();
    Prepared(Prepared&&) noexcept;
    Prepared& operator=(Prepared&&) noexcept;
    ~Prepared();

    std::unique_ptr<c10d::Reducer> reducer;  // null in a world of one
    std::vector<at::Tensor> buffers;         // floating-point ones only: the counters are equal by construction
  };

  // Builds a reducer beside the one in use, for a change that may still be undone. No backward pass may come before it
  // is used or dropped. `parameters` are all that require a gradient, in forward order; `buffers` are those of the same
  // modules. It calls no collective.
  // Errors: INVALID_ARGUMENT [NOTHING_TRAINABLE]; UNAVAILABLE [REDUCER_FAILED].
  absl::StatusOr<Prepared> Prepare(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers);
  // Replaces the reducer in use.
  void Use(Prepared prepared) { used_ = std::move(prepared); }

  // Prepares a reducer and uses it. The old one is dropped first, to save its memory. Errors: as Prepare().
  absl::Status Rebuild(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers);

  // These two stand around each forward pass that a backward pass follows. Exceptions of torch pass through.
  void BeforeForward();
  void BeforeBackward(const at::Tensor& loss);

  // Gives every rank rank 0's active buffers now. It is a collective. Exceptions of torch pass through.
  void SyncBuffers();

  // Returns the bytes of gradients that this rank has handed to all_reduce so far.
  int64_t bytes_reduced() const { return bytes_reduced_; }

 private:
  const ProcessGroupPtr group_;
  std::atomic<int64_t> bytes_reduced_{0};
  Prepared used_;
};

// Makes `tensors` equal to rank 0's, in one message per element type. With a null group there is nothing to do.
// It is a collective. Exceptions of torch pass through.
void BroadcastFromRankZero(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_GRADIENT_REDUCER_H_
