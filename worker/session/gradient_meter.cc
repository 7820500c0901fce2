#include "worker/session/gradient_meter.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "common/base/status.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/commit/torch_status.h"
#include "worker/session/side_pass.h"

namespace egeria::worker {
namespace {

using Clock = std::chrono::steady_clock;

at::Tensor Norm(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor.detach(), 2, c10::nullopt, false,
                                at::promote_types(tensor.scalar_type(), at::kFloat));
}

// Returns sums of squares by module, with one copy from the device. An undefined norm counts nothing.
std::vector<double> SumsOfSquares(const std::vector<std::vector<at::Tensor>>& norms) {
  std::vector<at::Tensor> defined;
  for (const auto& module : norms) {
    for (const at::Tensor& norm : module) {
      if (norm.defined()) defined.push_back(norm.to(at::kDouble));
    }
  }
  std::vector<double> sums(norms.size(), 0);
  if (defined.empty()) return sums;
  const at::Tensor values = at::stack(defined).square().cpu();
  const double* value = values.const_data_ptr<double>();
  for (size_t i = 0; i < norms.size(); ++i) {
    for (const at::Tensor& norm : norms[i]) {
      if (norm.defined()) sums[i] += *value++;
    }
  }
  return sums;
}

// ||E g||^2 by module, of gradient descent with one rate, which is left out: only shares of the whole are asked for.
std::vector<double> ProgressOf(const GradientReading& squares, int ranks) {
  std::vector<double> progress;
  const double parts = squares.parts * ranks;
  for (size_t i = 0; parts > 1 && i < squares.mean_of_squares.size(); ++i) {
    progress.push_back((parts * squares.square_of_mean[i] - squares.mean_of_squares[i]) / (parts - 1));
  }
  return progress;
}

std::vector<std::vector<at::Tensor>> Norms(const std::vector<std::vector<at::Tensor>>& tensors) {
  std::vector<std::vector<at::Tensor>> norms;
  for (const auto& module : tensors) {
    auto& row = norms.emplace_back();
    for (const at::Tensor& tensor : module) row.push_back(tensor.defined() ? Norm(tensor) : at::Tensor());
  }
  return norms;
}

}  // namespace

GradientMeter::GradientMeter(const ModuleFreezer* freezer, ProcessGroupPtr group, const GradientRequest& request)
    : freezer_(freezer),
      group_(std::move(group)),
      request_(request),
      first_(static_cast<int>(request.first_module.value())) {
  for (int module = first_; module < static_cast<int>(freezer_->modules().size()); ++module) {
    parameters_.push_back(freezer_->trainable_parameters(module));
    own_norms_.emplace_back(parameters_.back().size());
  }
  if (!replays()) WatchOwn();
}

GradientMeter::~GradientMeter() { RemoveHooks(); }

void GradientMeter::WatchOwn() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (size_t j = 0; j < parameters_[i].size(); ++j) {
      at::Tensor* const norm = &own_norms_[i][j];
      // The hook runs before the gradient is accumulated, and so before the reducer is told of it.
      const unsigned hook = parameters_[i][j].register_hook([this, norm](const at::Tensor& gradient) {
        const Clock::time_point begin = Clock::now();
        *norm = Norm(gradient);
        backward_seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
      });
      hooks_.emplace_back(parameters_[i][j], hook);
    }
  }
}

void GradientMeter::RemoveHooks() {
  for (auto& [tensor, hook] : hooks_) tensor.remove_hook(hook);
  hooks_.clear();
}

void GradientMeter::BeforeForward(const at::Tensor& input) {
  batch_ = input.size(0);
  if (replays()) input_ = input.detach().clone();
}

absl::StatusOr<GradientReading> GradientMeter::Measure(const LossOfRows& loss) {
  RemoveHooks();
  try {
    absl::StatusOr<GradientReading> squares = !replays() ? OfRanks() : alone() ? OfHalves(loss) : OfFrozen(loss);
    if (squares.ok()) squares->progress = ProgressOf(*squares, alone() ? 1 : group_->getSize());
    return squares;
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "GRADIENTS_FAILED", MessageOf(error));
  }
}

GradientReading GradientMeter::Known(int parts) const {
  return {
      .first_module = request_.first_module, .request_version = request_.version, .parts = parts, .samples = batch_};
}

GradientReading GradientMeter::OfRanks() const {
  Gradients means;
  for (const auto& module : parameters_) {
    auto& row = means.emplace_back();
    for (const at::Tensor& parameter : module) row.push_back(parameter.grad());
  }
  GradientReading squares = Known(1);
  squares.mean_of_squares = SumsOfSquares(own_norms_);
  squares.square_of_mean = SumsOfSquares(Norms(means));
  return squares;
}

absl::StatusOr<GradientReading> GradientMeter::OfHalves(const LossOfRows& loss) {
  if (batch_ < 2) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRADIENTS", "a batch of ", batch_, " samples");
  }
  // Where one half has a sample more, the estimate of ||E g||^2 is still unbiased, as it is the product of two
  // independent gradients.
  Gradients one = Replay(loss, 0, batch_ / 2);
  const Gradients other = Replay(loss, batch_ / 2, batch_);
  GradientReading squares = Known(2);
  squares.mean_of_squares = SumsOfSquares(Norms(one));
  const std::vector<double> others = SumsOfSquares(Norms(other));
  for (size_t i = 0; i < one.size(); ++i) {
    squares.mean_of_squares[i] = (squares.mean_of_squares[i] + others[i]) / 2;
    for (size_t j = 0; j < one[i].size(); ++j) one[i][j].add_(other[i][j]).div_(2);
  }
  squares.square_of_mean = SumsOfSquares(Norms(one));
  return squares;
}

absl::StatusOr<GradientReading> GradientMeter::OfFrozen(const LossOfRows& loss) {
  absl::Status failure;
  std::vector<at::Tensor> flat;
  std::vector<int64_t> sizes;
  for (const auto& module : parameters_) {
    int64_t size = 0;
    for (const at::Tensor& parameter : module) size += parameter.numel();
    sizes.push_back(size);
  }
  GradientReading squares = Known(1);
  at::Tensor values = at::zeros({1}, at::kFloat);
  for (const int64_t size : sizes) flat.push_back(at::zeros({size}, at::kFloat));
  try {
    if (batch_ < 1) throw std::runtime_error("no forward pass");
    const Gradients whole = Replay(loss, 0, batch_);
    squares.mean_of_squares = SumsOfSquares(Norms(whole));
    for (size_t i = 0; i < whole.size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : whole[i]) parts.push_back(gradient.reshape(-1).to(at::kCPU, at::kFloat));
      if (!parts.empty()) flat[i] = at::cat(parts);
    }
    values.fill_(1);
  } catch (const std::exception& error) {  // the other ranks wait for this one
    failure = NamedError(absl::StatusCode::kInternal, "GRADIENTS_FAILED", MessageOf(error));
  }
  flat.push_back(values);
  std::vector<at::Tensor> sum = {at::cat(flat)};
  try {
    group_->allreduce(sum)->wait();
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "RANK_GONE", MessageOf(error));
  }
  EGERIA_RETURN_IF_ERROR(failure);
  if (sum[0][-1].item<double>() != group_->getSize()) {
    return NamedError(absl::StatusCode::kInternal, "GRADIENTS_FAILED", "on another rank");
  }
  const at::Tensor mean = sum[0].div_(group_->getSize());
  Gradients means;
  int64_t offset = 0;
  for (const int64_t size : sizes) {
    means.push_back({mean.narrow(0, offset, size)});
    offset += size;
  }
  squares.square_of_mean = SumsOfSquares(Norms(means));
  return squares;
}

GradientMeter::Gradients GradientMeter::Replay(const LossOfRows& loss, int64_t begin, int64_t end) {
  const std::vector<LayerModule>& modules = freezer_->modules();
  SidePass side_pass(modules, input_.device());
  std::vector<at::Tensor> wanted;
  for (const auto& module : parameters_) {
    for (const at::Tensor& parameter : module) {
      side_pass.AskForGradient(parameter);
      wanted.push_back(parameter);
    }
  }
  at::Tensor output = input_.slice(0, begin, end).clone();  // a layer may change it in place
  for (int i = 0; i < static_cast<int>(modules.size()); ++i) {
    at::AutoGradMode mode(i >= first_);
    output = modules[i].Run(std::move(output));
  }
  at::AutoGradMode mode(true);
  const auto flat = torch::autograd::grad({loss(output, begin, end)}, wanted, {}, /*retain_graph=*/false,
                                          /*create_graph=*/false, /*allow_unused=*/true);
  Gradients gradients;
  size_t next = 0;
  for (const auto& module : parameters_) {
    auto& row = gradients.emplace_back();
    for (const at::Tensor& parameter : module) {
      const at::Tensor& gradient = flat[next++];
      row.push_back(gradient.defined() ? gradient.detach() : at::zeros_like(parameter));
    }
  }
  return gradients;
}

}  // namespace egeria::worker
