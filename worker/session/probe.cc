#include "worker/session/probe.h"

#include "ATen/core/grad_mode.h"
#include "ATen/ops/mm.h"

namespace egeria::worker {

at::Tensor Probe(const std::vector<LayerModule>& modules, size_t first, size_t last, const at::Tensor& input,
                 ActivationMetric metric) {
  at::NoGradGuard no_gradients;
  std::vector<std::shared_ptr<Block>> blocks;
  for (size_t i = first; i <= last; ++i) {
    blocks.insert(blocks.end(), modules[i].blocks().begin(), modules[i].blocks().end());
  }
  EvalModeGuard eval(blocks);
  at::Tensor output = input;
  for (const auto& block : blocks) output = block->forward(output);
  const at::Tensor rows = output.reshape({output.size(0), -1}).to(at::kFloat);
  return metric == ActivationMetric::kSpLoss ? at::mm(rows, rows.t()) : rows;
}

}  // namespace egeria::worker
