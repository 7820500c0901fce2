#ifndef EGERIA_WORKER_SESSION_GRADIENT_METER_H_
#define EGERIA_WORKER_SESSION_GRADIENT_METER_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/freeze/module_freezer.h"
#include "worker/session/gradient_exchange.h"

namespace egeria::worker {

// Returns the mean loss of rows begin..end-1 of the batch under way, whose outputs are `output` (as many rows).
using LossOfRows = std::function<at::Tensor(const at::Tensor& output, int64_t begin, int64_t end)>;

// Measures the gradients of one training step of gradient descent, without a trace on it: the norms of which
// a GradientReading is made.
//
// With several ranks they cost no pass of their own: tensor hooks take those of this rank's gradients, before the
// reducer sees them, and those of the mean are taken after the backward pass. With one rank each half of the batch gets
// a forward and a backward pass of its own, on the side, as the ranks' parts have them. Under common statistics of
// batch normalisation the gradients of two halves would have far more in common than the samples have. For modules that
// are frozen each rank's whole batch gets such passes. Buffers, random states and gradients are put back (SidePass).
//
//   GradientMeter meter(&freezer, group, request);   // before the forward pass
//   meter.BeforeForward(input); output = ...; loss = LossOf(output, 0, n); loss.backward();
//   squares = meter.Measure(LossOf);                 // before the optimizer's step
//
// For a frozen module with several ranks Measure() is a collective. The training thread owns a meter, for one step.
class GradientMeter {
 public:
  GradientMeter(const ModuleFreezer* freezer, ProcessGroupPtr group, const GradientRequest& request);
  ~GradientMeter();
  GradientMeter(const GradientMeter&) = delete;
  GradientMeter& operator=(const GradientMeter&) = delete;

  void BeforeForward(const at::Tensor& input);

  // Returns the time that the hooks have taken of the backward pass, which has ended; on a device, to launch them.
  double backward_seconds() const { return backward_seconds_; }

  // Returns what this rank knows of the gradients; the caller, who knows the step, fills it in.
  // Errors: FAILED_PRECONDITION [NO_GRADIENTS] there was no such pass, or of one sample; UNAVAILABLE [RANK_GONE];
  // INTERNAL [GRADIENTS_FAILED] torch's reason. Whatever fails here on one rank, it takes part in what others wait for.
  absl::StatusOr<GradientReading> Measure(const LossOfRows& loss);

 private:
  using Gradients = std::vector<std::vector<at::Tensor>>;  // indexed by module, from the first one on, and parameter

  bool alone() const { return group_ == nullptr; }
  bool replays() const { return alone() || first_ < freezer_->frozen_prefix(); }
  void WatchOwn();
  void RemoveHooks();
  // Makes a reading of what this rank knows, told apart in so many parts. Its lists are empty.
  GradientReading Known(int parts) const;
  GradientReading OfRanks() const;
  absl::StatusOr<GradientReading> OfHalves(const LossOfRows& loss);
  absl::StatusOr<GradientReading> OfFrozen(const LossOfRows& loss);
  // Computes the gradients of the mean loss of rows begin..end-1 of the batch.
  Gradients Replay(const LossOfRows& loss, int64_t begin, int64_t end);

  const ModuleFreezer* const freezer_;
  const ProcessGroupPtr group_;
  const GradientRequest request_;
  const int first_;
  std::vector<std::vector<at::Tensor>> parameters_;  // each module's, as far as they train or would if not frozen
  std::vector<std::vector<at::Tensor>> own_norms_;   // norms of this rank's gradients; undefined where none came
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  double backward_seconds_ = 0;  // the thread of the backward pass adds to it
  at::Tensor input_;
  int64_t batch_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_GRADIENT_METER_H_
