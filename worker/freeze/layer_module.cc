#include "worker/freeze/layer_module.h"

#include <utility>

#include "common/base/status.h"

namespace egeria::worker {

LayerModule::LayerModule(std::string name, std::vector<NamedBlock> blocks) : name_(std::move(name)) {
  for (const NamedBlock& block : blocks) {
    for (const auto& parameter : block.block->named_parameters()) {
      parameters_.push_back({block.name + "." + parameter.key(), parameter.value()});
      parameter_count_ += parameter.value().numel();
      parameter_bytes_ += static_cast<int64_t>(parameter.value().nbytes());
    }
    for (const auto& buffer : block.block->named_buffers()) {
      buffers_.push_back({block.name + "." + buffer.key(), buffer.value()});
    }
    blocks_.push_back(block.block);
  }
}

at::Tensor LayerModule::Run(at::Tensor input) const {
  for (const auto& block : blocks_) input = block->forward(std::move(input));
  return input;
}

void LayerModule::SetTraining(bool on) const {
  for (const auto& block : blocks_) block->train(on);
}

void LayerModule::Pin() const {
  for (const auto& block : blocks_) block->Pin();
}

void LayerModule::Unpin() const {
  for (const auto& block : blocks_) block->Unpin();
}

absl::StatusOr<std::vector<LayerModule>> MakeLayerModules(const std::vector<StagedBlock>& blocks,
                                                          const PartitionOptions& options) {
  std::vector<BlockInfo> infos;
  for (const StagedBlock& block : blocks) {
    int64_t count = 0;
    for (const at::Tensor& parameter : block.block->parameters()) count += parameter.numel();
    infos.push_back({block.name, block.stage, count});
  }
  EGERIA_ASSIGN_OR_RETURN(const std::vector<ModuleCut> cuts, Partition(infos, options));
  std::vector<LayerModule> modules;
  for (const ModuleCut& cut : cuts) {
    std::vector<LayerModule::NamedBlock> members;
    for (int i = cut.begin; i < cut.end; ++i) members.push_back({blocks[i].name, blocks[i].block});
    modules.emplace_back(cut.name, std::move(members));
  }
  return modules;
}

}  // namespace egeria::worker
