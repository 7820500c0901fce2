#ifndef EGERIA_COMMON_TENSOR_WIRE_TENSOR_H_
#define EGERIA_COMMON_TENSOR_WIRE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria {

// Element types that cross the network, numbered as egeria.v1.DataType.
enum class DataType : int {
  kUnspecified = 0,
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt64 = 5,
  kInt32 = 6,
  kUInt8 = 7,
  kInt8 = 8,
  kBool = 9,
};

// Bytes per element; 0 for kUnspecified.
size_t ElementSize(DataType dtype);
// "float32", "int64", ...
const char* DataTypeName(DataType dtype);

struct TensorSpec {
  std::string name;
  DataType dtype = DataType::kUnspecified;
  std::vector<int64_t> shape;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Bytes of a dense tensor of this type and shape.
// Errors: INVALID_ARGUMENT for an unknown type, a negative dimension, or a product beyond 2^40.
absl::StatusOr<size_t> ByteSize(const TensorSpec& spec);

// The border between files that know torch and files that know protobuf: a dense, row-major, little-endian
// tensor in host memory. The bytes are shared and immutable, so that a copy of the struct is cheap.
// Thread-compatible.
struct WireTensor {
  TensorSpec spec;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps the bytes alive

  const std::byte* data() const { return bytes.data(); }
  size_t size() const { return bytes.size(); }
};

// A tensor of these bytes, whatever its spec says.
WireTensor MakeWireTensor(TensorSpec spec, std::vector<std::byte> bytes);

// A tensor of `spec` whose bytes are copied from `data`. CHECKs that the spec is valid.
WireTensor MakeWireTensor(TensorSpec spec, const void* data);

}  // namespace egeria

#endif  // EGERIA_COMMON_TENSOR_WIRE_TENSOR_H_
