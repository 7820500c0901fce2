#ifndef EGERIA_COMMON_PLASTICITY_SP_LOSS_H_
#define EGERIA_COMMON_PLASTICITY_SP_LOSS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::plasticity {

// Similarity-preserving loss between the outputs of a layer module in training and in its reference, from
// their Gram matrices G = A A^T (A: b x d, one row per sample; G: b x b, row-major):
//
//   SP(G, H) = 1/b^2 * || G' - H' ||_F^2,   row i of G' = row i of G / max(||row i||_2, 1e-30)
//
// It lies in [0, 4/b], is 0 for equal matrices, and does not change when either matrix is multiplied by a
// positive number. It is computed in double whatever the element type. It depends on b, so that values of
// different b cannot be compared.
//
// Errors: INVALID_ARGUMENT [BAD_SHAPE] batch under 2, or a span whose size is not batch^2; [NOT_FINITE] an
// element is NaN or infinite.
absl::StatusOr<double> SpLoss(std::span<const float> training, std::span<const float> reference, int64_t batch);
absl::StatusOr<double> SpLoss(std::span<const double> training, std::span<const double> reference, int64_t batch);

// G = A A^T of `batch` rows of `width` elements each (row-major), summed in double. For tests and small
// tools: whoever has a tensor library computes it there.
//
// Errors: INVALID_ARGUMENT [BAD_SHAPE] batch or width under 1, or a span whose size is not batch * width.
absl::StatusOr<std::vector<double>> GramMatrix(std::span<const float> rows, int64_t batch, int64_t width);
absl::StatusOr<std::vector<double>> GramMatrix(std::span<const double> rows, int64_t batch, int64_t width);

}  // namespace egeria::plasticity

#endif  // EGERIA_COMMON_PLASTICITY_SP_LOSS_H_
