#include "worker/session/gradient_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/zeros.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace egeria::worker {
namespace {

// Numbers before the lists: ranks that offer, their parts, ranks that know their samples, samples, ranks that know
// progress.
constexpr size_t kHead = 5;
// Offers that wait for their exchange: that of the step that has just ended, and of the one before.
constexpr size_t kMaxOffered = 2;
// By which the ranks' squares of one mean may differ; they compute it from the same bits.
constexpr double kTolerance = 1e-6;

bool Finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

}  // namespace

GradientExchange::GradientExchange(ProcessGroupPtr group, int module_count)
    : world_size_(group == nullptr ? 1 : group->getSize()), module_count_(module_count), reduction_(std::move(group)) {}

size_t GradientExchange::SizeOf(const GradientRequest& request) const {
  return static_cast<size_t>(module_count_ - request.first_module.value());
}

void GradientExchange::Offer(const GradientRequest& request, int64_t step, GradientSquares own) {
  offered_[step] = Offered{request, std::move(own)};
  if (offered_.size() > kMaxOffered) offered_.erase(offered_.begin());
}

absl::Status GradientExchange::Begin(const GradientRequest& request, int64_t step) {
  const size_t size = SizeOf(request);
  const at::Tensor numbers = at::zeros({static_cast<int64_t>(kHead + 3 * size)}, at::kDouble);
  begun_request_ = request;
  begun_step_ = step;
  begun_own_.reset();
  const auto found = offered_.find(step);
  if (found != offered_.end() && found->second.request.version == request.version &&
      found->second.squares.mean_of_squares.size() == size && found->second.squares.square_of_mean.size() == size) {
    begun_own_ = std::move(found->second.squares);
    double* out = numbers.mutable_data_ptr<double>();
    *out++ = 1;
    *out++ = begun_own_->parts;
    *out++ = begun_own_->samples > 0 ? 1 : 0;
    *out++ = static_cast<double>(begun_own_->samples);
    *out++ = begun_own_->progress.size() == size ? 1 : 0;
    out = std::copy(begun_own_->mean_of_squares.begin(), begun_own_->mean_of_squares.end(), out);
    out = std::copy(begun_own_->square_of_mean.begin(), begun_own_->square_of_mean.end(), out);
    if (begun_own_->progress.size() == size) std::copy(begun_own_->progress.begin(), begun_own_->progress.end(), out);
  }
  offered_.erase(offered_.begin(), offered_.upper_bound(step));
  return reduction_.Start(numbers, c10d::ReduceOp::SUM);
}

absl::StatusOr<std::optional<GradientReading>> GradientExchange::Finish(const WaitLimits& limits) {
  if (!reduction_.in_flight()) return std::nullopt;
  EGERIA_RETURN_IF_ERROR(reduction_.Finish(limits));
  const std::optional<GradientSquares> own = std::exchange(begun_own_, std::nullopt);
  const double* const sums = reduction_.value().const_data_ptr<double>();
  if (!own.has_value() || sums[0] != world_size_ || sums[1] != world_size_ * own->parts) return std::nullopt;
  const size_t size = SizeOf(begun_request_);
  GradientSquares all;
  all.parts = world_size_ * own->parts;
  all.samples = sums[2] == world_size_ ? static_cast<int64_t>(sums[3]) : 0;
  for (size_t i = 0; i < size; ++i) {
    all.mean_of_squares.push_back(sums[kHead + i] / world_size_);
    all.square_of_mean.push_back(sums[kHead + size + i] / world_size_);
    if (sums[4] == world_size_) all.progress.push_back(sums[kHead + 2 * size + i] / world_size_);
    if (std::abs(all.square_of_mean[i] - own->square_of_mean[i]) <= kTolerance * all.square_of_mean[i]) continue;
    if (std::isfinite(all.square_of_mean[i]) && !std::exchange(told_, true)) {
      LogWarning(
          "the ranks' gradients differ after the backward pass, so that nothing can be said of their noise: "
          "they are not averaged then");
    }
    return std::nullopt;
  }
  return Alone(begun_request_, begun_step_, std::move(all));
}

std::optional<GradientReading> GradientExchange::Alone(const GradientRequest& request, int64_t step,
                                                       GradientSquares own) {
  if (!Finite(own.mean_of_squares) || !Finite(own.square_of_mean) || !Finite(own.progress)) return std::nullopt;
  GradientReading reading;
  reading.first_module = request.first_module;
  reading.step = step;
  reading.request_version = request.version;
  reading.parts = own.parts;
  reading.mean_of_squares = std::move(own.mean_of_squares);
  reading.square_of_mean = std::move(own.square_of_mean);
  reading.samples = own.samples;
  reading.progress = std::move(own.progress);
  return reading;
}

}  // namespace egeria::worker
