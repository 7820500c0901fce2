#include "common/tensor/torch_types.h"

#include "common/base/status.h"

namespace egeria {

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

at::ScalarType ToScalarType(DataType type) {
  switch (type) {
    case DataType::kFloat32: return at::kFloat;
    case DataType::kFloat64: return at::kDouble;
    case DataType::kFloat16: return at::kHalf;
    case DataType::kBFloat16: return at::kBFloat16;
    case DataType::kInt64: return at::kLong;
    case DataType::kInt32: return at::kInt;
    case DataType::kUInt8: return at::kByte;
    case DataType::kInt8: return at::kChar;
    case DataType::kBool: return at::kBool;
    case DataType::kUnspecified: break;
  }
  EGERIA_CHECK(false && "element type without a scalar type");
}

}  // namespace egeria
