#include "common/plasticity/sp_loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace egeria::plasticity {
namespace {

// True when `size` is rows * columns; never overflows.
bool HasShape(size_t size, int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0 && size % static_cast<size_t>(rows) == 0 &&
         size / static_cast<size_t>(rows) == static_cast<size_t>(columns);
}

// Computes the L2 norm. The division by the largest element keeps the squares from over- and underflowing.
template <typename T>
double Norm(std::span<const T> row) {
  double largest = 0;
  for (const T x : row) largest = std::max(largest, std::abs(static_cast<double>(x)));
  if (largest == 0) return 0;
  double sum = 0;
  for (const T x : row) sum += (x / largest) * (x / largest);
  return largest * std::sqrt(sum);
}

template <typename T>
absl::Status CheckGram(std::span<const T> gram, int64_t batch, const char* whose) {
  if (batch < 2 || !HasShape(gram.size(), batch, batch)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "the ", whose, " Gram matrix has ", gram.size(),
                      " elements where a batch of ", batch, " (at least 2) needs its square");
  }
  const auto is_finite = [](T x) { return std::isfinite(x); };
  if (!std::all_of(gram.begin(), gram.end(), is_finite)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NOT_FINITE", "the ", whose,
                      " Gram matrix has an element that is NaN or infinite");
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<double> SpLossOf(std::span<const T> training, std::span<const T> reference, int64_t batch) {
  EGERIA_RETURN_IF_ERROR(CheckGram(training, batch, "training"));
  EGERIA_RETURN_IF_ERROR(CheckGram(reference, batch, "reference"));
  const size_t b = static_cast<size_t>(batch);
  double sum = 0;
  for (size_t i = 0; i < b; ++i) {
    const std::span<const T> g = training.subspan(i * b, b);
    const std::span<const T> h = reference.subspan(i * b, b);
    const double g_norm = std::max(Norm(g), kSmallestNorm);
    const double h_norm = std::max(Norm(h), kSmallestNorm);
    for (size_t j = 0; j < b; ++j) {
      const double difference = g[j] / g_norm - h[j] / h_norm;
      sum += difference * difference;
    }
  }
  return sum / (static_cast<double>(b) * static_cast<double>(b));
}

}  // namespace

absl::StatusOr<double> SpLoss(std::span<const float> training, std::span<const float> reference, int64_t batch) {
  return SpLossOf(training, reference, batch);
}
absl::StatusOr<double> SpLoss(std::span<const double> training, std::span<const double> reference, int64_t batch) {
  return SpLossOf(training, reference, batch);
}

}  // namespace egeria::plasticity
