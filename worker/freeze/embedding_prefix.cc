#include "worker/freeze/embedding_prefix.h"

#include <algorithm>
#include <memory>
#include <set>

#include "torch/nn/modules/embedding.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {
namespace {

// A layer module with at least this share of its parameters in embeddings is a lookup table.
constexpr double kTableShare = 0.99;
// Beyond this share of a model's parameters, embeddings are what the model learns.
constexpr double kMaxShareOfModel = 2.0 / 3;

bool IsLookupTable(const ParameterCounts& counts) {
  return static_cast<double>(counts.in_embeddings) >=
         kTableShare * static_cast<double>(std::max<int64_t>(1, counts.all));
}

ParameterCounts CountsOf(const LayerModule& module) {
  ParameterCounts counts{module.parameter_count(), 0};
  std::set<const void*> seen;  // a weight that several layers share counts once
  for (const std::shared_ptr<Block>& block : module.blocks()) {
    for (const auto& layer : block->modules()) {
      at::Tensor rows;
      if (const auto* embedding = layer->as<torch::nn::EmbeddingImpl>()) rows = embedding->weight;
      if (const auto* bag = layer->as<torch::nn::EmbeddingBagImpl>()) rows = bag->weight;
      if (rows.defined() && seen.insert(rows.unsafeGetTensorImpl()).second) counts.in_embeddings += rows.numel();
    }
  }
  return counts;
}

}  // namespace

int EmbeddingPrefix(const std::vector<ParameterCounts>& modules) {
  if (modules.empty()) return 0;
  const auto end = std::find_if_not(modules.begin(), modules.end() - 1, IsLookupTable);
  int64_t in_prefix = 0, in_model = 0;
  for (auto module = modules.begin(); module != modules.end(); ++module) {
    if (module < end) in_prefix += module->all;
    in_model += module->all;
  }
  const bool most = static_cast<double>(in_prefix) > kMaxShareOfModel * static_cast<double>(in_model);
  return most ? 0 : static_cast<int>(end - modules.begin());
}

int EmbeddingPrefix(const std::vector<LayerModule>& modules) {
  std::vector<ParameterCounts> counts;
  for (const LayerModule& module : modules) counts.push_back(CountsOf(module));
  return EmbeddingPrefix(counts);
}

}  // namespace egeria::worker
