#include "worker/freeze/block.h"

namespace egeria::worker {

void Block::train(bool on) {
  requested_ = on;
  torch::nn::Module::train(on && !pinned_);
}

void Block::Pin() {
  if (pinned_) return;
  requested_ = is_training();
  pinned_ = true;
  torch::nn::Module::train(false);
}

void Block::Unpin() {
  if (!pinned_) return;
  pinned_ = false;
  torch::nn::Module::train(requested_);
}

EvalModeGuard::EvalModeGuard(const std::vector<std::shared_ptr<Block>>& blocks) {
  saved_.reserve(blocks.size());
  for (const std::shared_ptr<Block>& block : blocks) {
    Saved saved{block, block->is_training(), {}};
    for (const auto& submodule : block->modules(/*include_self=*/false)) {
      saved.submodules.emplace_back(submodule, submodule->is_training());
    }
    block->torch::nn::Module::train(false);
    saved_.push_back(std::move(saved));
  }
}

EvalModeGuard::~EvalModeGuard() {
  for (const Saved& saved : saved_) {
    saved.block->torch::nn::Module::train(saved.own_mode);
    // Parents come before their children, whose own mode therefore has the last word.
    for (const auto& [submodule, mode] : saved.submodules) {
      if (submodule->is_training() != mode) submodule->train(mode);
    }
  }
}

}  // namespace egeria::worker
