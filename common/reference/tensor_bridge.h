#ifndef EGERIA_COMMON_REFERENCE_TENSOR_BRIDGE_H_
#define EGERIA_COMMON_REFERENCE_TENSOR_BRIDGE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <string>

#include "absl/status/status.h"
#include "common/tensor/wire_tensor.h"

// These functions lead from wire tensors to torch's, and from torch's exceptions to statuses.
namespace egeria::reference {

// Returns a tensor over the same bytes, which it keeps alive (booleans are copied: torch relies on 0 and 1). The wire
// tensor must have passed CheckWireTensor(). Nothing may write to the result.
at::Tensor ToTensor(const WireTensor& tensor);

// Returns a number where a tensor is expected. As in Python, it takes part in type promotion more weakly than a tensor.
at::Tensor WrappedNumber(const at::Scalar& number);

// Returns the b x b matrix of inner products of the rows of `activation` (b x anything), float32, contiguous. Any dense
// layout is taken as it lies, since the products do not depend on the order of features.
at::Tensor GramMatrix(const at::Tensor& activation);

// Returns the exception being handled, as INTERNAL [REFERENCE_FAILED] `what`: first line of its message; a
// GraphTooLarge as RESOURCE_EXHAUSTED [GRAPH_TOO_LARGE]. Call only in a catch block.
absl::Status StatusOfCurrentException(const std::string& what);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_TENSOR_BRIDGE_H_
