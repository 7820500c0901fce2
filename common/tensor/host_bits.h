#ifndef EGERIA_COMMON_TENSOR_HOST_BITS_H_
#define EGERIA_COMMON_TENSOR_HOST_BITS_H_

#include <vector>

#include "ATen/core/Tensor.h"

namespace egeria {

// Returns dense tensors in host memory that together hold all that `tensor` holds, bit by bit. Its numbers are
// integers of their size, whatever their type is. A sparse tensor gives its indices and values; a quantized one gives
// its numbers, scales and zero points. Memory of a device is copied; dense memory of the host is shared. A tensor
// without memory (meta) gives none. Exceptions of torch pass through, for a layout or a subclass that has no such
// parts.
std::vector<at::Tensor> HostBits(const at::Tensor& tensor);

}  // namespace egeria

#endif  // EGERIA_COMMON_TENSOR_HOST_BITS_H_
