#include "common/plasticity/activation_metric.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/base/status.h"
#include "common/plasticity/sp_loss.h"

namespace egeria::plasticity {
namespace {

absl::StatusOr<double> ActivationNorm(std::span<const float> training, std::span<const float> reference,
                                      int64_t batch) {
  if (batch < 2 || training.empty() || training.size() != reference.size() ||
      training.size() % static_cast<size_t>(batch) != 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "outputs of ", training.size(), " and ",
                      reference.size(), " elements, of a batch of ", batch, " (at least 2)");
  }
  double difference = 0, size = 0;
  for (size_t i = 0; i < training.size(); ++i) {
    const double a = training[i], r = reference[i];
    difference += (a - r) * (a - r);
    size += r * r;
  }
  if (!std::isfinite(difference) || !std::isfinite(size)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NOT_FINITE",
                      "an output has an element that is NaN or infinite");
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), kSmallestNorm);
}

}  // namespace

absl::StatusOr<double> Distance(ActivationMetric metric, std::span<const float> training,
                                std::span<const float> reference, int64_t batch) {
  return metric == ActivationMetric::kSpLoss ? SpLoss(training, reference, batch)
                                             : ActivationNorm(training, reference, batch);
}

}  // namespace egeria::plasticity
