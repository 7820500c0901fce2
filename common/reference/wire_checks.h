#ifndef EGERIA_COMMON_REFERENCE_WIRE_CHECKS_H_
#define EGERIA_COMMON_REFERENCE_WIRE_CHECKS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plasticity/activation_metric.h"
#include "common/tensor/wire_tensor.h"

// Checks of what arrives over the network against what the graph declares, before torch sees a byte of it.
namespace egeria::reference {

// True unless a floating-point element is infinite or not a number.
bool IsFinite(const WireTensor& tensor);

// The element type and shape are those of `spec` (a dimension of -1 fits any but 0) and the bytes are all
// there. Errors: INVALID_ARGUMENT [BAD_DTYPE], [BAD_SHAPE].
absl::Status CheckWireTensor(const TensorSpec& spec, const WireTensor& tensor);

// A sample consists of the inputs of a module and, last, of what the metric compares of its output, in float32. That is
// the Gram matrix (b x b), or the output itself (b x d), where b, 2..4096, is the batch of the inputs. Errors: those of
// CheckWireTensor, [BAD_SHAPE] for a wrong count or batch, [SAMPLE_NOT_FINITE].
absl::Status CheckSample(const std::vector<TensorSpec>& inputs, absl::Span<const WireTensor> tensors,
                         plasticity::ActivationMetric metric = plasticity::ActivationMetric::kSpLoss);

// Returns `weights` in the order of `specs`, by name; tensors that the graph does not name are dropped.
// Errors: those of CheckWireTensor, [MISSING_WEIGHT], [SNAPSHOT_NOT_FINITE].
absl::StatusOr<std::vector<WireTensor>> MatchWeights(const std::vector<TensorSpec>& specs,
                                                     std::vector<WireTensor> weights);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_WIRE_CHECKS_H_
