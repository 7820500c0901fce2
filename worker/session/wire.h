#ifndef EGERIA_WORKER_SESSION_WIRE_H_
#define EGERIA_WORKER_SESSION_WIRE_H_

#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "common/tensor/wire_tensor.h"

namespace egeria::worker {

// Copies a host tensor, of any strides. Errors: INVALID_ARGUMENT [BAD_DTYPE].
absl::StatusOr<WireTensor> ToWire(const std::string& name, const at::Tensor& tensor);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_WIRE_H_
