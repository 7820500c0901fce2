#include "worker/trainer/step_shares.h"

#include <chrono>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "ATen/Context.h"
#include "ATen/DeviceAccelerator.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/optim/sgd.h"
#include "worker/commit/torch_status.h"
#include "worker/session/row_proof.h"
#include "worker/trainer/launch.h"

namespace egeria::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// The first warms up; of the others the fastest counts, as nothing makes a pass faster than it is.
constexpr int kPasses = 3;

// Puts back, to the bit, what passes before the training change: buffers and the random state.
class Restored {
 public:
  Restored(const std::vector<worker::LayerModule>& modules, c10::Device device)
      : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    random_state_ = generator_.get_state().clone();
    for (const worker::LayerModule& module : modules) {
      for (const auto& buffer : module.buffers()) buffers_.emplace_back(buffer.tensor, buffer.tensor.clone());
    }
  }
  ~Restored() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(random_state_);
    const at::NoGradGuard no_gradients;
    for (auto& [buffer, value] : buffers_) {
      // A write that changes nothing would count as a write, and the cache of frozen activations would be given up.
      if (!worker::SameBits(buffer, value)) buffer.copy_(value);
    }
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  at::Generator generator_;
  at::Tensor random_state_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // each with a copy of its content
};

double SecondsSince(Clock::time_point* last, c10::Device device) {
  if (at::accelerator::isAccelerator(device.type())) at::accelerator::synchronizeDevice(device.index());
  const Clock::time_point now = Clock::now();
  return std::chrono::duration<double>(now - std::exchange(*last, now)).count();
}

struct Times {
  double forward = std::numeric_limits<double>::infinity();
  std::vector<double> backward;  // by module
  double optimizer = std::numeric_limits<double>::infinity();

  void Take(const Times& other) {
    forward = std::min(forward, other.forward);
    optimizer = std::min(optimizer, other.optimizer);
    backward.resize(other.backward.size(), std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < backward.size(); ++i) backward[i] = std::min(backward[i], other.backward[i]);
  }
};

Times Pass(const std::vector<worker::LayerModule>& modules, const at::Tensor& batch, c10::Device device,
           torch::optim::SGD* optimizer) {
  Times times;
  at::AutoGradMode gradients(true);
  std::vector<at::Tensor> inputs, outputs;
  at::Tensor value = batch;
  Clock::time_point last = Clock::now();
  SecondsSince(&last, device);
  for (const worker::LayerModule& module : modules) {
    inputs.push_back(value.detach());
    // The first module's input needs no gradient; an in-place operation may not begin with a leaf that does.
    if (inputs.size() > 1) inputs.back().requires_grad_(true);
    outputs.push_back(module.Run(inputs.size() > 1 ? inputs.back().clone() : inputs.back()));
    value = outputs.back();
  }
  times.forward = SecondsSince(&last, device);
  times.backward.resize(modules.size());
  for (size_t i = modules.size(); i-- > 0;) {
    std::vector<at::Tensor> wanted;
    for (const worker::NamedTensor& parameter : modules[i].parameters()) {
      if (parameter.tensor.requires_grad()) wanted.push_back(parameter.tensor);
    }
    if (i > 0) wanted.push_back(inputs[i]);
    const at::Tensor seed = at::ones_like(outputs[i]);
    SecondsSince(&last, device);
    torch::autograd::grad({outputs[i]}, wanted, {seed}, /*retain_graph=*/false, /*create_graph=*/false,
                          /*allow_unused=*/true);
    times.backward[i] = SecondsSince(&last, device);
  }
  optimizer->step();
  times.optimizer = SecondsSince(&last, device);
  return times;
}

}  // namespace

std::vector<double> MeasureStepShares(const std::vector<worker::LayerModule>& modules,
                                      const std::vector<int64_t>& batch_shape, c10::Device device) {
  const Restored restored(modules, device);
  const at::Tensor batch = at::zeros(batch_shape, at::TensorOptions().device(device));
  std::vector<at::Tensor> copies;
  std::vector<double> counts;
  for (const worker::LayerModule& module : modules) {
    module.SetTraining(true);
    counts.push_back(static_cast<double>(module.parameter_count()));
    for (const worker::NamedTensor& parameter : module.parameters()) {
      copies.push_back(at::zeros_like(parameter.tensor).requires_grad_(true));
      copies.back().mutable_grad() = at::zeros_like(parameter.tensor);
    }
  }
  torch::optim::SGD optimizer(copies, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4));
  Times best;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Times times = Pass(modules, batch, device, &optimizer);
    if (pass > 0) best.Take(times);
  }
  const double backward = std::accumulate(best.backward.begin(), best.backward.end(), 0.0);
  const double total = best.forward + backward + best.optimizer;
  const double parameters = std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
  std::vector<double> shares;
  for (size_t i = 0; i < modules.size(); ++i) {
    shares.push_back(total > 0 ? (best.backward[i] + best.optimizer * counts[i] / parameters) / total : 0);
  }
  return shares;
}

absl::StatusOr<std::vector<double>> StepSharesOfRankZero(const worker::GroupMember& member,
                                                         const std::vector<worker::LayerModule>& modules,
                                                         const std::vector<int64_t>& batch_shape, c10::Device device) {
  std::string text;
  if (member.rank == 0) {
    try {
      text = absl::StrJoin(MeasureStepShares(modules, batch_shape, device), " ");
    } catch (const std::exception& error) {
      LogWarning("the layer modules' parts of a step's time cannot be measured: ", worker::MessageOf(error));
    }
  }
  EGERIA_ASSIGN_OR_RETURN(text, ShareFromRankZero(member, "step_shares", text));
  std::vector<double> shares;
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    double share = 0;
    EGERIA_CHECK(absl::SimpleAtod(part, &share));
    shares.push_back(share);
  }
  return shares;
}

}  // namespace egeria::trainer
