#ifndef EGERIA_WORKER_SESSION_PROBE_H_
#define EGERIA_WORKER_SESSION_PROBE_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/agent/agent.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {

// Runs modules first..last, one after the other, on `input` (b samples, the input of module `first`) in eval mode and
// without gradients, and returns what the metric compares of the output: see plasticity::Compared(). Restores every
// mode; changes no parameter, no buffer and no random state, so that training is bit-equal with and without it.
//
// It is eval mode because between train and eval mode batch normalisation changes the output more than a few steps of
// training do, and because the reference has to be run in the same mode. Exceptions of torch pass through, with the
// modes restored.
at::Tensor Probe(const std::vector<LayerModule>& modules, size_t first, size_t last, const at::Tensor& input,
                 ActivationMetric metric = ActivationMetric::kSpLoss);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_PROBE_H_
