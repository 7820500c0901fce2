#include "worker/session/wire.h"

#include "common/base/status.h"
#include "common/tensor/torch_types.h"

namespace egeria::worker {

bool HasValues(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

absl::StatusOr<WireTensor> ToWire(const std::string& name, const at::Tensor& tensor) {
  if (!HasValues(tensor)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NO_VALUES", "tensor '", name,
                      "' is fake, sparse or on the meta device, and has no values to send");
  }
  const DataType dtype = ToDataType(tensor.scalar_type());
  if (dtype == DataType::kUnspecified) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DTYPE", "tensor '", name, "' is of type ",
                      c10::toString(tensor.scalar_type()), ", which cannot be sent");
  }
  const at::Tensor dense = tensor.detach().contiguous();
  return MakeWireTensor({name, dtype, dense.sizes().vec()}, dense.const_data_ptr());
}

}  // namespace egeria::worker
