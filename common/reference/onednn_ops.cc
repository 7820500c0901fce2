#include "common/reference/onednn_ops.h"

#include <c10/util/Exception.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/reference/operator_guards.h"

namespace egeria::reference {

OperatorCall::OperatorCall(const char* name, const char* overload)
    : op_(c10::Dispatcher::singleton().findSchema({name, overload})) {}

absl::Status CheckAvailable(const std::vector<const OperatorCall*>& calls) {
  for (const OperatorCall* call : calls) {
    if (!call->available()) return absl::UnimplementedError("this build of torch lacks oneDNN's fused operators");
  }
  return absl::OkStatus();
}

bool HasBfloat16() {
  const auto supported = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
  if (!supported.has_value()) return true;
  std::vector<c10::IValue> stack;
  supported->callBoxed(stack);
  return stack.at(0).toBool();
}

c10::IValue IntList(const std::vector<int64_t>& values) {
  c10::List<int64_t> list;
  for (int64_t value : values) list.push_back(value);
  return list;
}

c10::IValue ScalarList(const std::vector<double>& values) {
  c10::impl::GenericList list(c10::OptionalType::create(c10::NumberType::get()));
  for (double value : values) list.push_back(c10::IValue(value));
  return list;
}

c10::IValue OptionalTensor(const at::Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }

const char* ActivationName(const FusedGroup& group) {
  switch (group.activation) {
    case Activation::kNone: return "none";
    case Activation::kRelu: return "relu";
    case Activation::kClamp: return "hardtanh";
    case Activation::kGelu: return "gelu";
  }
  return "none";
}

std::vector<double> ActivationScalars(const FusedGroup& group) {
  if (group.activation != Activation::kClamp) return {};
  return {group.clamp_low, group.clamp_high};
}

std::vector<int64_t> CheckConvolutionInput(const FusedGroup& group, const std::vector<int64_t>& weight_shape,
                                           const at::Tensor& input) {
  TORCH_CHECK(input.dim() == 4 && input.numel() > 0, "a fused convolution takes a batch of images, not ",
              input.sizes());
  TORCH_CHECK(input.size(1) == weight_shape[1] * group.groups, "a convolution of ", weight_shape[1] * group.groups,
              " channels got ", input.size(1));
  std::vector<int64_t> result = {input.size(0), weight_shape[0]};
  double products = static_cast<double>(input.size(0));  // each window meets the whole weight
  for (int64_t size : weight_shape) products *= static_cast<double>(size);
  for (int i = 0; i < 2; ++i) {
    const int64_t window = group.dilation[i] * (weight_shape[2 + i] - 1) + 1;
    const int64_t room = input.size(2 + i) + 2 * group.padding[i] - window;
    TORCH_CHECK(room >= 0, "a convolution's window of ", window, " is larger than the padded image");
    result.push_back(room / group.stride[i] + 1);
    products *= static_cast<double>(result.back());
  }
  CheckProducts(products);
  return result;
}

void CheckLinearInput(const std::vector<int64_t>& weight_shape, const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2 && input.numel() > 0 && input.size(-1) == weight_shape[1], "a linear of width ",
              weight_shape[1], " got ", input.sizes());
  CheckProducts(static_cast<double>(input.numel()) * static_cast<double>(weight_shape[0]));
}

}  // namespace egeria::reference
