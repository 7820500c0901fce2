#ifndef EGERIA_WORKER_SESSION_GRADIENT_METER_H_
#define EGERIA_WORKER_SESSION_GRADIENT_METER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/freeze/module_freezer.h"
#include "worker/session/gradient_exchange.h"

namespace egeria::worker {

// Measures the gradients of one training step, without a trace on it: the norms of which GradientSquares are made.
//
// With several ranks they cost no pass of their own: those of this rank's gradients are taken in tensor hooks, before
// the reducer sees them, and those of the mean after the backward pass. With one rank, and for modules that are frozen,
// the forward pass is taken once more on the side and each half of the batch (each rank's whole batch) gets a backward
// pass of its own, with the gradient that the loss gave for the output, set to zero in all other rows. Batch
// normalisation uses the whole batch's statistics there, as in training; random numbers are drawn as they were, and
// buffers, random states and gradients are put back.
//
//   GradientMeter meter(&freezer, group, request);   // before the forward pass
//   meter.BeforeForward(input); output = ...; meter.AfterForward(output); loss.backward();
//   squares = meter.Measure();                       // before the optimizer's step
//
// For a frozen module with several ranks Measure() is a collective. Owned by the training thread; lives for one step.
class GradientMeter {
 public:
  GradientMeter(const ModuleFreezer* freezer, ProcessGroupPtr group, const GradientRequest& request);
  ~GradientMeter();
  GradientMeter(const GradientMeter&) = delete;
  GradientMeter& operator=(const GradientMeter&) = delete;

  void BeforeForward(const at::Tensor& input);
  void AfterForward(const at::Tensor& output);

  // Errors: FAILED_PRECONDITION [NO_GRADIENTS] there was no such pass; UNAVAILABLE [RANK_GONE]; INTERNAL
  // [GRADIENTS_FAILED] torch's reason. Whatever fails here on one rank, it takes part in what others wait for.
  absl::StatusOr<GradientSquares> Measure();

 private:
  using Gradients = std::vector<std::vector<at::Tensor>>;  // by module from the first one on, and parameter

  bool alone() const { return group_ == nullptr; }
  bool replays() const { return alone() || first_ < freezer_->frozen_prefix(); }
  void WatchOwn();
  void RemoveHooks();
  GradientSquares OfRanks() const;
  absl::StatusOr<GradientSquares> OfHalves();
  absl::StatusOr<GradientSquares> OfFrozen();
  // For each part, a run of rows, of the batch.
  std::vector<Gradients> Replay(const std::vector<int64_t>& rows);

  const ModuleFreezer* const freezer_;
  const ProcessGroupPtr group_;
  const int first_;
  std::vector<std::vector<at::Tensor>> parameters_;  // by module: those that train, or would if not frozen
  std::vector<std::vector<at::Tensor>> own_norms_;   // of this rank's gradients; undefined: none came
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  at::Tensor input_;
  at::Tensor random_state_;     // at the beginning of the forward pass
  at::Tensor output_gradient_;  // of the loss by the last module's output
  int64_t batch_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_GRADIENT_METER_H_
