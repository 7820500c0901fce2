#include "worker/session/probe.h"

#include "ATen/core/grad_mode.h"
#include "common/plasticity/compared.h"

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
  return plasticity::Compared(metric == ActivationMetric::kSpLoss ? plasticity::ActivationMetric::kSpLoss
                                                                  : plasticity::ActivationMetric::kActivationNorm,
                              output);
}

}  // namespace egeria::worker
