#include "common/reference/tensor_bridge.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/plasticity/compared.h"
#include "common/reference/memory_budget.h"
#include "common/tensor/torch_types.h"

namespace egeria::reference {
namespace {

// Cuts the text at the first line's end: the rest may be a stack trace.
std::string FirstLine(const std::string& text) {
  return text.substr(0, std::min({text.find('\n'), text.size(), size_t{300}}));
}

}  // namespace

at::Tensor ToTensor(const WireTensor& tensor) {
  const bool boolean = tensor.spec.dtype == DataType::kBool;
  const at::ScalarType type = boolean ? at::kByte : ToScalarType(tensor.spec.dtype);
  void* data = const_cast<std::byte*>(tensor.data());  // nothing in the engine writes to a leaf
  at::Tensor result =
      at::from_blob(data, tensor.spec.shape, [keep = tensor.owner](void*) {}, at::TensorOptions().dtype(type));
  return boolean ? result.ne(0) : result;
}

at::Tensor WrappedNumber(const at::Scalar& number) {
  const at::ScalarType type = number.isFloatingPoint() ? at::kDouble : (number.isBoolean() ? at::kBool : at::kLong);
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions().dtype(type));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

at::Tensor GramMatrix(const at::Tensor& activation) {
  TORCH_CHECK(activation.dim() >= 1, "the output has no batch dimension");
  // The dimensions go from the widest stride down, the batch kept first: that is a view where the rows lie densely.
  std::vector<int64_t> order(activation.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin() + 1, order.end(),
                   [&](int64_t a, int64_t b) { return activation.stride(a) > activation.stride(b); });
  return plasticity::Compared(plasticity::ActivationMetric::kSpLoss, activation.permute(order)).contiguous();
}

absl::Status StatusOfCurrentException(const std::string& what) {
  try {
    throw;
  } catch (const GraphTooLarge& error) {
    return NamedError(absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE", what, ": ", error.what());
  } catch (const c10::Error& error) {
    return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", what, ": ",
                      FirstLine(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", what, ": ", FirstLine(error.what()));
  } catch (...) {
    return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", what, ": unknown exception");
  }
}

}  // namespace egeria::reference
