#include "controller/reference/engine_contents.h"

#include "common/graph/graph_proto.h"

namespace egeria::reference {
namespace {

void Describe(const WireTensor& tensor, const SharedMemory& memory, engine::v1::Tensor* out) {
  ToProto(tensor.spec, out->mutable_spec());
  out->set_offset(memory.OffsetOf(tensor));
}

}  // namespace

EngineContents::Request EngineContents::RequestFor(const SampleContext* context, const SubmittedSample& sample,
                                                   const std::vector<int64_t>& forgotten) {
  Request request;
  for (int64_t id : forgotten) {
    const auto found = snapshots_.find(id);
    if (found == snapshots_.end()) continue;
    request.message.add_forget(id);
    request.replaced.push_back(std::move(found->second));
    snapshots_.erase(found);
  }
  if (context == nullptr) return request;
  for (size_t i = 0; i < context->graphs.size(); ++i) {
    const ReferenceGraph& graph = *context->graphs[i];
    engine::v1::Module* const module = request.message.add_modules();
    module->set_id(graph.id);
    module->set_snapshot(context->snapshots[i]->id);
    const auto [entry, absent] = snapshots_.try_emplace(graph.id);
    if (absent) graph::ToProto(graph.graph, module->mutable_graph());
    if (entry->second == context->snapshots[i]) continue;
    module->set_has_weights(true);
    for (const WireTensor& weight : context->snapshots[i]->weights) Describe(weight, *memory_, module->add_weights());
    request.replaced.push_back(std::exchange(entry->second, context->snapshots[i]));
  }
  for (const WireTensor& tensor : sample.tensors) Describe(tensor, *memory_, request.message.add_sample());
  request.message.set_norm(sample.metric == plasticity::ActivationMetric::kActivationNorm);
  return request;
}

}  // namespace egeria::reference
