#include "worker/python/native/reference_costs.h"

#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "common/base/status.h"
#include "common/graph/graph_json.h"
#include "common/reference/backend.h"
#include "common/reference/reference_chain.h"
#include "common/reference/reference_module.h"
#include "common/reference/wire_checks.h"
#include "worker/session/wire.h"

namespace egeria::python {

absl::StatusOr<std::vector<reference::BackendMeasurement>> MeasureReference(
    const std::string& graph_json, const std::vector<worker::NamedTensor>& weights,
    const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  EGERIA_ASSIGN_OR_RETURN(const graph::ModuleGraph graph, graph::ParseGraphJson(graph_json));
  EGERIA_ASSIGN_OR_RETURN(auto module, reference::ReferenceModule::Create(graph));
  std::vector<WireTensor> wire;
  for (const worker::NamedTensor& weight : weights) {
    EGERIA_ASSIGN_OR_RETURN(wire.emplace_back(), worker::ToWire(weight.name, weight.tensor));
  }
  EGERIA_ASSIGN_OR_RETURN(wire, reference::MatchWeights(module->weight_specs(), std::move(wire)));
  module->SetWeights(std::move(wire));
  EGERIA_ASSIGN_OR_RETURN(const auto backends, reference::MakeBackends({"int8", "bf16", "prepacked", "aten"}));
  reference::ReferenceChain chain({module}, &backends);
  const int64_t batch = inputs.empty() || inputs[0].dim() == 0 ? 0 : inputs[0].size(0);
  if (batch < 2) return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "the sample has no batch");
  // The training's Gram matrix decides the plasticity, in which nobody is interested here.
  const std::vector<float> gram(batch * batch, 1.0F);
  EGERIA_RETURN_IF_ERROR(chain.Evaluate(inputs, gram, batch).status());
  return chain.selector().measurements();
}

}  // namespace egeria::python
