#ifndef EGERIA_WORKER_FREEZE_LAYER_MODULE_H_
#define EGERIA_WORKER_FREEZE_LAYER_MODULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/freeze/block.h"
#include "worker/freeze/named_tensor.h"
#include "worker/freeze/partition.h"

namespace egeria::worker {

// A layer module is consecutive blocks of a model, frozen and unfrozen together. It holds its blocks alive;
// the tensors are those of the model, not copies. It is owned by the training thread.
class LayerModule {
 public:
  struct NamedBlock {
    std::string name;
    std::shared_ptr<Block> block;
  };

  LayerModule(std::string name, std::vector<NamedBlock> blocks);

  const std::string& name() const { return name_; }
  // Names look like "block.submodule.weight". Tensors are in the order of the blocks.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }

  int64_t parameter_count() const { return parameter_count_; }
  int64_t parameter_bytes() const { return parameter_bytes_; }

  // Runs the blocks on one tensor, which gives one. shape[0] is the batch.
  at::Tensor Run(at::Tensor input) const;

  // Calls train(on) of each block: pinned blocks stay in eval mode.
  void SetTraining(bool on) const;
  void Pin() const;
  void Unpin() const;

 private:
  const std::string name_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  int64_t parameter_count_ = 0;
  int64_t parameter_bytes_ = 0;
};

// Cuts `blocks` (each with the stage that it belongs to) as `partition` says.
struct StagedBlock {
  std::string name;
  std::string stage;
  std::shared_ptr<Block> block;
};
// Errors: those of Partition().
absl::StatusOr<std::vector<LayerModule>> MakeLayerModules(const std::vector<StagedBlock>& blocks,
                                                          const PartitionOptions& options);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_LAYER_MODULE_H_
