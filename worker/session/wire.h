#ifndef EGERIA_WORKER_SESSION_WIRE_H_
#define EGERIA_WORKER_SESSION_WIRE_H_

#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "common/tensor/wire_tensor.h"

namespace egeria::worker {

// Returns whether the tensor has values in memory of its own: a fake tensor, one on the meta device and other wrappers
// have none, and to read them would end the process.
bool HasValues(const at::Tensor& tensor);

// Copies a host tensor, of any strides. Errors: INVALID_ARGUMENT [BAD_DTYPE], [NO_VALUES].
absl::StatusOr<WireTensor> ToWire(const std::string& name, const at::Tensor& tensor);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_WIRE_H_
