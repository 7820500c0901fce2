#include "worker/session/gradient_meter.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/stack.h"
#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

using Clock = std::chrono::steady_clock;

// With one rank a reading is of so many steps.
constexpr int kSteps = 3;

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
    : group_(std::move(group)), request_(request), frozen_prefix_(freezer->frozen_prefix()) {
  const int first = static_cast<int>(request_.first_module.value());
  for (int module = first; module < static_cast<int>(freezer->modules().size()); ++module) {
    parameters_.push_back(freezer->trainable_parameters(module));
    own_norms_.emplace_back(parameters_.back().size());
  }
  squares_.resize(parameters_.size());
  if (group_ != nullptr) WatchOwn();
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

void GradientMeter::BeforeForward(const at::Tensor& input) { batch_ = input.size(0); }

absl::StatusOr<std::optional<GradientReading>> GradientMeter::Measure() {
  RemoveHooks();
  try {
    std::optional<GradientReading> squares = group_ != nullptr ? OfRanks() : OfSteps();
    if (squares.has_value()) squares->progress = ProgressOf(*squares, group_ == nullptr ? 1 : group_->getSize());
    return squares;
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "GRADIENTS_FAILED", MessageOf(error));
  }
}

GradientReading GradientMeter::Known(int parts, int64_t samples) const {
  return {
      .first_module = request_.first_module, .request_version = request_.version, .parts = parts, .samples = samples};
}

GradientMeter::Tensors GradientMeter::Gradients() const {
  Tensors gradients;
  for (const auto& module : parameters_) {
    auto& row = gradients.emplace_back();
    for (const at::Tensor& parameter : module) row.push_back(parameter.grad());
  }
  return gradients;
}

GradientReading GradientMeter::OfRanks() const {
  GradientReading squares = Known(1, batch_);
  squares.mean_of_squares = SumsOfSquares(own_norms_);
  squares.square_of_mean = SumsOfSquares(Norms(Gradients()));
  return squares;
}

std::optional<GradientReading> GradientMeter::OfSteps() {
  const at::NoGradGuard no_gradients;
  if (!batches_.empty() && batches_.back() != batch_) {  // it begins anew
    batches_.clear();
    alternating_.clear();
    squares_.assign(squares_.size(), 0);
  }
  batches_.push_back(batch_);
  const Tensors gradients = Gradients();
  const std::vector<double> own = SumsOfSquares(Norms(gradients));
  std::transform(own.begin(), own.end(), squares_.begin(), squares_.begin(), std::plus<>());
  if (alternating_.empty()) alternating_ = Tensors(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    alternating_[i].resize(gradients[i].size());
    for (size_t j = 0; j < gradients[i].size(); ++j) {
      at::Tensor& kept = alternating_[i][j];
      const at::Tensor& gradient = gradients[i][j];
      if (!gradient.defined()) {
        if (kept.defined()) kept.neg_();
      } else {
        kept = kept.defined() ? kept.neg_().add_(gradient) : gradient.clone();
      }
    }
  }
  if (batches_.size() < kSteps) return std::nullopt;
  GradientReading squares = Known(kSteps, std::accumulate(batches_.begin(), batches_.end(), int64_t{0}));
  const std::vector<double> alternating = SumsOfSquares(Norms(alternating_));
  for (size_t i = 0; i < squares_.size(); ++i) {
    const double signal = (squares_[i] - alternating[i]) / 2;
    const double mean = squares_[i] / kSteps;
    squares.mean_of_squares.push_back(mean);
    // The number of which (parts square - mean) / (parts - 1) is the signal.
    squares.square_of_mean.push_back(((kSteps - 1) * signal + mean) / kSteps);
  }
  return squares;
}

}  // namespace egeria::worker
