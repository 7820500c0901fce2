#include "worker/session/gradient_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/zeros.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace egeria::worker {
namespace {

// The numbers before the lists are: the ranks that offer, their parts, the ranks that know their samples, these
// samples, and the ranks that know progress.
constexpr size_t kHead = 5;
// Two offers may wait for their exchange: one of the step that has just ended, and one of the step before.
constexpr size_t kMaxOffered = 2;
// The ranks' squares of one mean may differ by this part: they compute it from the same bits.
constexpr double kTolerance = 1e-6;

bool Finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

}  // namespace

GradientExchange::GradientExchange(ProcessGroupPtr group, int module_count)
    : world_size_(group == nullptr ? 1 : group->getSize()), module_count_(module_count), reduction_(std::move(group)) {}

size_t GradientExchange::ModulesFrom(ModuleIndex first) const {
  return static_cast<size_t>(module_count_ - first.value());
}

void GradientExchange::Offer(GradientReading own) {
  const int64_t step = own.step;
  offered_.insert_or_assign(step, std::move(own));
  if (offered_.size() > kMaxOffered) offered_.erase(offered_.begin());
}

absl::Status GradientExchange::Begin(const GradientRequest& request, int64_t step) {
  const size_t size = ModulesFrom(request.first_module);
  const at::Tensor numbers = at::zeros({static_cast<int64_t>(kHead + 3 * size)}, at::kDouble);
  begun_.reset();
  const auto found = offered_.find(step);
  if (found != offered_.end() && found->second.request_version == request.version &&
      found->second.mean_of_squares.size() == size && found->second.square_of_mean.size() == size) {
    begun_ = std::move(found->second);
    double* out = numbers.mutable_data_ptr<double>();
    *out++ = 1;
    *out++ = begun_->parts;
    *out++ = begun_->samples > 0 ? 1 : 0;
    *out++ = static_cast<double>(begun_->samples);
    *out++ = begun_->progress.size() == size ? 1 : 0;
    out = std::copy(begun_->mean_of_squares.begin(), begun_->mean_of_squares.end(), out);
    out = std::copy(begun_->square_of_mean.begin(), begun_->square_of_mean.end(), out);
    if (begun_->progress.size() == size) std::copy(begun_->progress.begin(), begun_->progress.end(), out);
  }
  offered_.erase(offered_.begin(), offered_.upper_bound(step));
  return reduction_.Start(numbers, c10d::ReduceOp::SUM);
}

absl::StatusOr<std::optional<GradientReading>> GradientExchange::Finish(const WaitLimits& limits) {
  if (!reduction_.in_flight()) return std::nullopt;
  EGERIA_RETURN_IF_ERROR(reduction_.Finish(limits));
  const std::optional<GradientReading> own = std::exchange(begun_, std::nullopt);
  const double* const sums = reduction_.value().const_data_ptr<double>();
  if (!own.has_value() || sums[0] != world_size_ || sums[1] != world_size_ * own->parts) return std::nullopt;
  const size_t size = own->mean_of_squares.size();
  GradientReading all{.first_module = own->first_module,
                      .step = own->step,
                      .request_version = own->request_version,
                      .parts = world_size_ * own->parts,
                      .samples = sums[2] == world_size_ ? static_cast<int64_t>(sums[3]) : 0};
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
  return IfFinite(std::move(all));
}

std::optional<GradientReading> GradientExchange::IfFinite(GradientReading reading) {
  const bool finite = Finite(reading.mean_of_squares) && Finite(reading.square_of_mean) && Finite(reading.progress);
  return finite ? std::optional(std::move(reading)) : std::nullopt;
}

}  // namespace egeria::worker
