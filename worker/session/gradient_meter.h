#ifndef EGERIA_WORKER_SESSION_GRADIENT_METER_H_
#define EGERIA_WORKER_SESSION_GRADIENT_METER_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/freeze/module_freezer.h"
#include "worker/session/gradient_exchange.h"

namespace egeria::worker {

// Makes one reading of the gradients that training computes, for gradient descent, without a trace on it.
//
// With several ranks a reading is of one step: tensor hooks take the norms of this rank's gradients, before the reducer
// sees them, and those of the mean are taken after the backward pass. With one rank it is of three steps in a row. The
// batches are independent, but the weights move from step to step, so that g1 g2 + g2 g3 - g1 g3 estimates ||E g||^2 at
// the first one (docs/adr/0021). It is (||g1||^2 + ||g2||^2 + ||g3||^2 - ||g3 - g2 + g1||^2) / 2.
//
//   GradientMeter meter(&freezer, group, request);   // before the forward pass
//   do {
//     meter.BeforeForward(input); loss = LossOf(...); loss.backward();
//     reading = meter.Measure();                     // before the optimizer's step
//   } while (reading is empty);                      // with one rank
//
// The training thread owns a meter, for one reading.
class GradientMeter {
 public:
  // Requires that the modules of `request` train.
  GradientMeter(const ModuleFreezer* freezer, ProcessGroupPtr group, const GradientRequest& request);
  ~GradientMeter();
  GradientMeter(const GradientMeter&) = delete;
  GradientMeter& operator=(const GradientMeter&) = delete;

  void BeforeForward(const at::Tensor& input);

  // Returns the time that the hooks have taken of the backward pass, which has ended; on a device, to launch them.
  double backward_seconds() const { return backward_seconds_; }
  // Returns the frozen prefix when the reading began.
  int frozen_prefix() const { return frozen_prefix_; }

  // Returns what this rank knows of the gradients; the caller, who knows the step, fills it in. It is empty where more
  // steps have to follow. Errors: INTERNAL [GRADIENTS_FAILED] torch's reason.
  absl::StatusOr<std::optional<GradientReading>> Measure();

 private:
  using Tensors = std::vector<std::vector<at::Tensor>>;  // indexed by module, from the first one on, and parameter

  void WatchOwn();
  void RemoveHooks();
  // Makes a reading of what this rank knows. Its lists are empty.
  GradientReading Known(int parts, int64_t samples) const;
  GradientReading OfRanks() const;
  // Takes the gradients of this step.
  std::optional<GradientReading> OfSteps();
  Tensors Gradients() const;

  const ProcessGroupPtr group_;
  const GradientRequest request_;
  const int frozen_prefix_;
  Tensors parameters_;
  Tensors own_norms_;  // norms of this rank's gradients; undefined where none came
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
  double backward_seconds_ = 0;  // the thread of the backward pass adds to it
  int64_t batch_ = 0;
  // These are of the steps so far, with one rank.
  std::vector<int64_t> batches_;
  std::vector<double> squares_;
  Tensors alternating_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_GRADIENT_METER_H_
