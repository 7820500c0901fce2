#include "worker/session/gradient_meter.h"

#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "common/base/status.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

at::Tensor Norm(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor.detach(), 2, c10::nullopt, false,
                                at::promote_types(tensor.scalar_type(), at::kFloat));
}

// Sums of squares by module; what is undefined counts nothing. One copy from the device.
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

std::vector<std::vector<at::Tensor>> Norms(const std::vector<std::vector<at::Tensor>>& tensors) {
  std::vector<std::vector<at::Tensor>> norms;
  for (const auto& module : tensors) {
    auto& row = norms.emplace_back();
    for (const at::Tensor& tensor : module) row.push_back(tensor.defined() ? Norm(tensor) : at::Tensor());
  }
  return norms;
}

at::Generator GeneratorOf(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Tensor RandomState(c10::Device device) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state().clone();
}

// What a pass on the side changes, put back at the end of a block.
class PutBack {
 public:
  PutBack(const std::vector<LayerModule>& modules, c10::Device device) : device_(device), random_(RandomState(device)) {
    for (const LayerModule& module : modules) {
      for (const NamedTensor& buffer : module.buffers()) buffers_.emplace_back(buffer.tensor, buffer.tensor.clone());
    }
  }
  ~PutBack() {
    SetRandom(random_);
    at::NoGradGuard no_gradients;
    for (auto& [buffer, value] : buffers_) buffer.copy_(value);
    for (at::Tensor& parameter : asked_) parameter.set_requires_grad(false);
  }
  void SetRandom(const at::Tensor& state) {
    at::Generator generator = GeneratorOf(device_);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
  void Ask(at::Tensor parameter) {
    if (parameter.requires_grad()) return;
    parameter.set_requires_grad(true);
    asked_.push_back(std::move(parameter));
  }

 private:
  const c10::Device device_;
  const at::Tensor random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
  std::vector<at::Tensor> asked_;
};

}  // namespace

GradientMeter::GradientMeter(const ModuleFreezer* freezer, ProcessGroupPtr group, const GradientRequest& request)
    : freezer_(freezer), group_(std::move(group)), first_(static_cast<int>(request.first_module.value())) {
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
      // Before the gradient is accumulated, and so before the reducer is told of it.
      const unsigned hook =
          parameters_[i][j].register_hook([norm](const at::Tensor& gradient) { *norm = Norm(gradient); });
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
  if (!replays()) return;
  input_ = input.detach().clone();
  random_state_ = RandomState(input.device());
}

void GradientMeter::AfterForward(const at::Tensor& output) {
  if (!replays() || !output.requires_grad()) return;
  output.register_hook([this](const at::Tensor& gradient) { output_gradient_ = gradient.detach().clone(); });
}

absl::StatusOr<GradientSquares> GradientMeter::Measure() {
  RemoveHooks();
  try {
    if (!replays()) return OfRanks();
    return alone() ? OfHalves() : OfFrozen();
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "GRADIENTS_FAILED", MessageOf(error));
  }
}

GradientSquares GradientMeter::OfRanks() const {
  Gradients means;
  for (const auto& module : parameters_) {
    auto& row = means.emplace_back();
    for (const at::Tensor& parameter : module) row.push_back(parameter.grad());
  }
  return {SumsOfSquares(own_norms_), SumsOfSquares(Norms(means)), 1, batch_};
}

absl::StatusOr<GradientSquares> GradientMeter::OfHalves() {
  if (!output_gradient_.defined() || batch_ < 2) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRADIENTS", "a batch of ", batch_,
                      " samples, or no backward pass");
  }
  const std::vector<int64_t> rows = {batch_ / 2, batch_ - batch_ / 2};
  std::vector<Gradients> halves = Replay(rows);
  GradientSquares squares;
  squares.parts = 2;
  squares.samples = batch_;
  // A half's gradient here is that of its share of the batch's mean loss. Where one half has a sample more, the
  // estimate of ||E g||^2 is still unbiased, as it is the product of two independent gradients.
  for (size_t part = 0; part < 2; ++part) {
    for (auto& module : halves[part]) {
      for (at::Tensor& gradient : module) gradient.mul_(static_cast<double>(batch_) / static_cast<double>(rows[part]));
    }
    const std::vector<double> sums = SumsOfSquares(Norms(halves[part]));
    squares.mean_of_squares.resize(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) squares.mean_of_squares[i] += sums[i] / 2;
  }
  for (size_t i = 0; i < halves[0].size(); ++i) {
    for (size_t j = 0; j < halves[0][i].size(); ++j) halves[0][i][j].add_(halves[1][i][j]).div_(2);
  }
  squares.square_of_mean = SumsOfSquares(Norms(halves[0]));
  return squares;
}

absl::StatusOr<GradientSquares> GradientMeter::OfFrozen() {
  absl::Status failure;
  std::vector<at::Tensor> flat;
  std::vector<int64_t> sizes;
  for (const auto& module : parameters_) {
    int64_t size = 0;
    for (const at::Tensor& parameter : module) size += parameter.numel();
    sizes.push_back(size);
  }
  GradientSquares squares{{}, {}, 1, batch_};
  at::Tensor values = at::zeros({1}, at::kFloat);
  for (const int64_t size : sizes) flat.push_back(at::zeros({size}, at::kFloat));
  try {
    if (!output_gradient_.defined()) throw std::runtime_error("no backward pass");
    const std::vector<Gradients> whole = Replay({batch_});
    squares.mean_of_squares = SumsOfSquares(Norms(whole[0]));
    for (size_t i = 0; i < whole[0].size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : whole[0][i]) parts.push_back(gradient.reshape(-1).to(at::kCPU, at::kFloat));
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

std::vector<GradientMeter::Gradients> GradientMeter::Replay(const std::vector<int64_t>& rows) {
  const std::vector<LayerModule>& modules = freezer_->modules();
  PutBack put_back(modules, input_.device());
  put_back.SetRandom(random_state_);
  std::vector<at::Tensor> wanted;
  for (const auto& module : parameters_) {
    for (const at::Tensor& parameter : module) {
      put_back.Ask(parameter);
      wanted.push_back(parameter);
    }
  }
  at::Tensor output = input_;
  for (int i = 0; i < static_cast<int>(modules.size()); ++i) {
    at::AutoGradMode mode(i >= first_);
    output = modules[i].Run(std::move(output));
  }
  at::AutoGradMode gradients(true);
  std::vector<Gradients> found;
  int64_t begin = 0;
  for (const int64_t size : rows) {
    at::Tensor masked = at::zeros_like(output_gradient_);
    masked.narrow(0, begin, size).copy_(output_gradient_.narrow(0, begin, size));
    begin += size;
    const auto flat = torch::autograd::grad({output}, wanted, {masked}, /*retain_graph=*/begin < batch_,
                                            /*create_graph=*/false, /*allow_unused=*/true);
    Gradients& part = found.emplace_back();
    size_t next = 0;
    for (const auto& module : parameters_) {
      auto& row = part.emplace_back();
      for (const at::Tensor& parameter : module) {
        const at::Tensor& gradient = flat[next++];
        row.push_back(gradient.defined() ? gradient.detach() : at::zeros_like(parameter));
      }
    }
  }
  return found;
}

}  // namespace egeria::worker
