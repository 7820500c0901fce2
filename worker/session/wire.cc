#include "worker/session/wire.h"

#include "common/base/status.h"

namespace egeria::worker {

DataType ToDataType(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DataType::kFloat32;
    case at::kDouble: return DataType::kFloat64;
    case at::kHalf: return DataType::kFloat16;
    case at::kBFloat16: return DataType::kBFloat16;
    case at::kLong: return DataType::kInt64;
    case at::kInt: return DataType::kInt32;
    case at::kByte: return DataType::kUInt8;
    case at::kChar: return DataType::kInt8;
    case at::kBool: return DataType::kBool;
    default: return DataType::kUnspecified;
  }
}

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
