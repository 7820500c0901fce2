#include "common/plasticity/compared.h"

#include <algorithm>
#include <span>

#include "ATen/ops/mm.h"

namespace egeria::plasticity {

at::Tensor Compared(ActivationMetric metric, const at::Tensor& activation) {
  const int64_t batch = activation.size(0);
  const at::Tensor rows =
      activation.detach().reshape({batch, activation.numel() / std::max<int64_t>(batch, 1)}).to(at::kFloat);
  return metric == ActivationMetric::kSpLoss ? at::mm(rows, rows.t()) : rows;
}

absl::StatusOr<double> DistanceOf(ActivationMetric metric, const at::Tensor& training, const at::Tensor& reference) {
  const auto on_host = [](const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kFloat).contiguous(); };
  const auto elements = [](const at::Tensor& tensor) {
    return std::span(tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel()));
  };
  const at::Tensor ours = on_host(training), theirs = on_host(reference);
  return Distance(metric, elements(ours), elements(theirs), training.dim() > 0 ? training.size(0) : 0);
}

}  // namespace egeria::plasticity
