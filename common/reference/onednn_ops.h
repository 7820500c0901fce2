#ifndef EGERIA_COMMON_REFERENCE_ONEDNN_OPS_H_
#define EGERIA_COMMON_REFERENCE_ONEDNN_OPS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/reference/lowering.h"

// Calls of oneDNN's fused operators. They have no C++ header, may be missing from a build of torch, and check
// their arguments less than ATen does, so that everything they rely on is checked here.
namespace egeria::reference {

// An operator by name, resolved once. Thread-safe.
class OperatorCall {
 public:
  OperatorCall(const char* name, const char* overload);
  bool available() const { return op_.has_value(); }
  // The operator's one result. Throws what it throws.
  template <typename... Args>
  at::Tensor operator()(Args&&... args) const {
    std::vector<c10::IValue> stack;
    stack.reserve(sizeof...(args));
    (stack.emplace_back(std::forward<Args>(args)), ...);
    op_->callBoxed(stack);
    return std::move(stack.at(0)).toTensor();
  }

 private:
  std::optional<c10::OperatorHandle> op_;
};

// UNIMPLEMENTED naming the first operator that is missing.
absl::Status CheckAvailable(const std::vector<const OperatorCall*>& calls);

// False where torch tells that oneDNN has no bfloat16 on this machine.
bool HasBfloat16();

// c10::List<int64_t> of the values.
c10::IValue IntList(const std::vector<int64_t>& values);
// Scalar?[]; oneDNN takes an activation's parameters so.
c10::IValue ScalarList(const std::vector<double>& values);
// An undefined tensor as None.
c10::IValue OptionalTensor(const at::Tensor& tensor);

// oneDNN's name of the activation: "none", "relu", "hardtanh" or "gelu"; and its parameters.
const char* ActivationName(const FusedGroup& group);
std::vector<double> ActivationScalars(const FusedGroup& group);

// Checks the input of the fused operators: they assume a non-empty batch of images (channels last) with the
// weight's channels and room for its window, or rows of the weight's width. Throws c10::Error. `weight_shape`
// is that of the unpacked weight. Returns the shape of the result.
std::vector<int64_t> CheckConvolutionInput(const FusedGroup& group, const std::vector<int64_t>& weight_shape,
                                           const at::Tensor& input);
void CheckLinearInput(const std::vector<int64_t>& weight_shape, const at::Tensor& input);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_ONEDNN_OPS_H_
