#ifndef EGERIA_COMMON_TENSOR_TORCH_TYPES_H_
#define EGERIA_COMMON_TENSOR_TORCH_TYPES_H_

#include "c10/core/ScalarType.h"
#include "common/tensor/wire_tensor.h"

// The wire's names of element types, and torch's.
namespace egeria {

// kUnspecified for a type that the wire has not.
DataType ToDataType(at::ScalarType type);

// kUnspecified has no scalar type: CHECKs.
at::ScalarType ToScalarType(DataType type);

}  // namespace egeria

#endif  // EGERIA_COMMON_TENSOR_TORCH_TYPES_H_
