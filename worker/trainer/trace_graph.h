#ifndef EGERIA_WORKER_TRAINER_TRACE_GRAPH_H_
#define EGERIA_WORKER_TRAINER_TRACE_GRAPH_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "worker/freeze/layer_module.h"

namespace egeria::trainer {

struct TracedModule {
  graph::ModuleGraph graph;
  std::vector<worker::NamedTensor> weights;  // those that the graph names, in its order
};

// Records what `module` computes in eval mode as a declarative graph, with `input` (any values, at least one
// sample) as the example. The batch is free: the recording is run at another batch size and compared with the
// module, because a size that is read in C++ is baked in silently. Modes and requires_grad are as before
// afterwards. Weights are named as in LayerModule.
//
// Errors: UNIMPLEMENTED [CANNOT_TRACE] naming the operator or value that the graph has no words for, or
// saying that it depends on the batch size; those of graph::Validate().
absl::StatusOr<TracedModule> TraceModule(const worker::LayerModule& module, const at::Tensor& input);

// Zeros of the shape that `module` makes of `input`; an undefined tensor if it refuses it.
at::Tensor OutputShapedLike(const worker::LayerModule& module, const at::Tensor& input);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_TRACE_GRAPH_H_
