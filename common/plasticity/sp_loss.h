#ifndef EGERIA_COMMON_PLASTICITY_SP_LOSS_H_
#define EGERIA_COMMON_PLASTICITY_SP_LOSS_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace egeria::plasticity {

// The norms by which rows and references are divided are at least this. It is far under what a module's activations
// give, so that scale invariance holds for small ones too.
inline constexpr double kSmallestNorm = 1e-30;

// Computes the similarity-preserving loss between the outputs of a layer module in training and in its reference. It is
// computed from their Gram matrices G = A A^T (A: b x d, one row per sample; G: b x b, row-major):
//
//   SP(G, H) = 1/b^2 * || G' - H' ||_F^2,   row i of G' = row i of G / max(||row i||_2, kSmallestNorm)
//
// It lies in [0, 4/b], is 0 for equal matrices, and does not change when either matrix is multiplied by a
// positive number. It is computed in double whatever the element type. It depends on b, so that values of
// different b cannot be compared.
//
// Errors: INVALID_ARGUMENT [BAD_SHAPE] batch under 2, or a span whose size is not batch^2; [NOT_FINITE] an
// element is NaN or infinite.
absl::StatusOr<double> SpLoss(std::span<const float> training, std::span<const float> reference, int64_t batch);
absl::StatusOr<double> SpLoss(std::span<const double> training, std::span<const double> reference, int64_t batch);

}  // namespace egeria::plasticity

#endif  // EGERIA_COMMON_PLASTICITY_SP_LOSS_H_
