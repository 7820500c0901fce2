#ifndef EGERIA_WORKER_FREEZE_BLOCK_H_
#define EGERIA_WORKER_FREEZE_BLOCK_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"

namespace egeria::worker {

// A block is the smallest unit of a model that can be frozen: a torch module with one tensor in and one out, whose mode
// can be pinned. While pinned it stays in eval mode through any later train() of itself or of a module that
// contains it, so that batch normalisation neither uses nor updates batch statistics and dropout is off;
// what was asked for meanwhile comes into force when it is unpinned.
//
// It is owned by the training thread.
class Block : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // It must not change `input` in place, nor use an in-place operator that would show in a trace.
  virtual at::Tensor forward(at::Tensor input) = 0;

  // Computes what forward() does in evaluation mode, by other operators, which round otherwise. It has copies of the
  // weights, and may write to its input. Null: there is none.
  using InferenceForm = std::function<at::Tensor(at::Tensor)>;
  virtual InferenceForm MakeInferenceForm() { return nullptr; }

  void train(bool on = true) override;

  void Pin();
  void Unpin();

 private:
  friend class EvalModeGuard;
  bool pinned_ = false;
  bool requested_ = true;  // the mode last asked for
};

// Puts blocks into eval mode for its lifetime and restores the mode of each of their submodules, whatever
// mixture that was. It does not count as a train() of the blocks.
class EvalModeGuard {
 public:
  explicit EvalModeGuard(const std::vector<std::shared_ptr<Block>>& blocks);
  ~EvalModeGuard();
  EvalModeGuard(const EvalModeGuard&) = delete;
  EvalModeGuard& operator=(const EvalModeGuard&) = delete;

 private:
  struct Saved {
    std::shared_ptr<Block> block;
    bool own_mode;
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> submodules;  // parents first
  };
  std::vector<Saved> saved_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_BLOCK_H_
