#include "common/tensor/wire_tensor.h"

#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace egeria {

size_t ElementSize(DataType dtype) {
  switch (dtype) {
    case DataType::kUnspecified: return 0;
    case DataType::kFloat64:
    case DataType::kInt64: return 8;
    case DataType::kFloat32:
    case DataType::kInt32: return 4;
    case DataType::kFloat16:
    case DataType::kBFloat16: return 2;
    case DataType::kUInt8:
    case DataType::kInt8:
    case DataType::kBool: return 1;
  }
  return 0;
}

const char* DataTypeName(DataType dtype) {
  switch (dtype) {
    case DataType::kUnspecified: return "unspecified";
    case DataType::kFloat32: return "float32";
    case DataType::kFloat64: return "float64";
    case DataType::kFloat16: return "float16";
    case DataType::kBFloat16: return "bfloat16";
    case DataType::kInt64: return "int64";
    case DataType::kInt32: return "int32";
    case DataType::kUInt8: return "uint8";
    case DataType::kInt8: return "int8";
    case DataType::kBool: return "bool";
  }
  return "unknown";
}

absl::StatusOr<size_t> ByteSize(const TensorSpec& spec) {
  constexpr size_t kLimit = size_t{1} << 40;
  size_t bytes = ElementSize(spec.dtype);
  if (bytes == 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DTYPE", "tensor '", spec.name,
                      "' has an unknown element type (", static_cast<int>(spec.dtype), ")");
  }
  for (int64_t dimension : spec.shape) {
    if (dimension < 0 || (dimension > 0 && bytes > kLimit / static_cast<size_t>(dimension))) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "tensor '", spec.name, "' has a dimension of ",
                        dimension);
    }
    bytes *= static_cast<size_t>(dimension);
  }
  return bytes;
}

WireTensor MakeWireTensor(TensorSpec spec, std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view = *owner;
  return {std::move(spec), view, std::move(owner)};
}

WireTensor MakeWireTensor(TensorSpec spec, const void* data) {
  const absl::StatusOr<size_t> size = ByteSize(spec);
  EGERIA_CHECK(size.ok());
  std::vector<std::byte> bytes(*size);
  if (*size > 0) std::memcpy(bytes.data(), data, *size);
  return MakeWireTensor(std::move(spec), std::move(bytes));
}

}  // namespace egeria
