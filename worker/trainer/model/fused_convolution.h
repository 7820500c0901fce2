#ifndef EGERIA_WORKER_TRAINER_MODEL_FUSED_CONVOLUTION_H_
#define EGERIA_WORKER_TRAINER_MODEL_FUSED_CONVOLUTION_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"

namespace egeria::trainer {

// A convolution without bias, and the batch normalisation behind it in evaluation mode, folded into one, by the kernels
// that torch.compile uses on CPUs. Weights are copies. Tensors have their channels last.
//
// It may be used by several threads. Exceptions of torch pass through.
class FusedConvolution {
 public:
  FusedConvolution(const torch::nn::Conv2d& convolution, const torch::nn::BatchNorm2d& norm);

  at::Tensor Run(const at::Tensor& input) const { return Run(input, "none"); }
  at::Tensor RunWithRelu(const at::Tensor& input) const { return Run(input, "relu"); }
  // Adds to `sum`, and applies ReLU: writes to `sum`, and returns it.
  at::Tensor AddWithRelu(const at::Tensor& input, const at::Tensor& sum) const;

 private:
  at::Tensor Run(const at::Tensor& input, const char* activation) const;

  at::Tensor weight_, bias_;
  std::vector<int64_t> padding_, stride_, dilation_;
  int64_t groups_;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_MODEL_FUSED_CONVOLUTION_H_
