#ifndef EGERIA_COMMON_PLASTICITY_ACTIVATION_METRIC_H_
#define EGERIA_COMMON_PLASTICITY_ACTIVATION_METRIC_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace egeria::plasticity {

// Says how far a layer module's output in training, A (b x d, one row per sample), is from that in its reference, R.
enum class ActivationMetric {
  kSpLoss,          // SP loss of the Gram matrices A A^T and R R^T (sp_loss.h): Egeria's plasticity
  kActivationNorm,  // ||A - R||_F / ||R||_F of the outputs themselves, by which Skip-Conv gates (arXiv:2104.11487)
};

// Returns the distance between what the metric looks at: Gram matrices (b x b) or outputs (b x d), row-major. It is
// computed in double, and at least 0; where R is 0, ||R||_F counts as kSmallestNorm.
//
// Errors: INVALID_ARGUMENT [BAD_SHAPE] the two differ in size, or do not fit the batch, which is at least 2;
// [NOT_FINITE] an element is NaN or infinite.
absl::StatusOr<double> Distance(ActivationMetric metric, std::span<const float> training,
                                std::span<const float> reference, int64_t batch);

}  // namespace egeria::plasticity

#endif  // EGERIA_COMMON_PLASTICITY_ACTIVATION_METRIC_H_
