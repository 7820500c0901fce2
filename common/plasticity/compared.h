#ifndef EGERIA_COMMON_PLASTICITY_COMPARED_H_
#define EGERIA_COMMON_PLASTICITY_COMPARED_H_

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "common/plasticity/activation_metric.h"

// These functions do for torch's tensors what activation_metric.h does for spans. Both front ends and the reference
// engine compute readings by them, in the same order of operations, so that equal activations give equal readings.
namespace egeria::plasticity {

// Returns what the metric compares of an activation (b x anything), in float32 on its device: the Gram matrix A A^T of
// its rows (b x b), or the rows A themselves (b x d). Exceptions of torch pass through.
at::Tensor Compared(ActivationMetric metric, const at::Tensor& activation);

// Returns the distance of what Compared() gave of two models, on any device.
//
// Errors: those of Distance() of spans.
absl::StatusOr<double> DistanceOf(ActivationMetric metric, const at::Tensor& training, const at::Tensor& reference);

}  // namespace egeria::plasticity

#endif  // EGERIA_COMMON_PLASTICITY_COMPARED_H_
