#include "worker/session/wire.h"

#include "common/base/status.h"
#include "common/tensor/torch_types.h"

namespace egeria::worker {

absl::StatusOr<WireTensor> ToWire(const std::string& name, const at::Tensor& tensor) {
  const DataType dtype = ToDataType(tensor.scalar_type());
  if (dtype == DataType::kUnspecified) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DTYPE", "tensor '", name, "' is of type ",
                      c10::toString(tensor.scalar_type()), ", which cannot be sent");
  }
  const at::Tensor dense = tensor.detach().contiguous();
  return MakeWireTensor({name, dtype, dense.sizes().vec()}, dense.const_data_ptr());
}

}  // namespace egeria::worker
