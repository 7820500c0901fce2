#include "worker/trainer/model/fused_convolution.h"

#include <optional>
#include <utility>
#include <variant>

#include "ATen/core/List.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/rsqrt.h"

namespace egeria::trainer {
namespace {

at::Tensor Call(const char* name, const char* overload, std::vector<c10::IValue> stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(&stack);
  return stack.front().toTensor();
}

c10::List<std::optional<at::Scalar>> NoNumbers() { return c10::List<std::optional<at::Scalar>>(); }

}  // namespace

FusedConvolution::FusedConvolution(const torch::nn::Conv2d& convolution, const torch::nn::BatchNorm2d& norm) {
  const at::NoGradGuard no_gradients;
  const auto& options = convolution->options;
  const at::Tensor scale = norm->weight * at::rsqrt(norm->running_var + norm->options.eps());
  weight_ = (convolution->weight * scale.view({-1, 1, 1, 1})).contiguous(at::MemoryFormat::ChannelsLast);
  bias_ = norm->bias - norm->running_mean * scale;
  const auto padding = std::get<torch::ExpandingArray<2>>(options.padding());
  padding_ = {padding->begin(), padding->end()};
  stride_ = {options.stride()->begin(), options.stride()->end()};
  dilation_ = {options.dilation()->begin(), options.dilation()->end()};
  groups_ = options.groups();
}

at::Tensor FusedConvolution::Run(const at::Tensor& input, const char* activation) const {
  return Call("mkldnn::_convolution_pointwise", "",
              {input, weight_, bias_, padding_, stride_, dilation_, groups_, activation, NoNumbers(), ""});
}

at::Tensor FusedConvolution::AddWithRelu(const at::Tensor& input, const at::Tensor& sum) const {
  return Call("mkldnn::_convolution_pointwise_", "binary",
              {sum, input, weight_, bias_, padding_, stride_, dilation_, groups_, "add", 1.0, "relu", NoNumbers(),
               c10::IValue()});
}

}  // namespace egeria::trainer
