#ifndef EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_
#define EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/cache/client/content_watch.h"
#include "worker/cache/entry/fingerprint.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {

// Runs the frozen front of a model, and tells it from others. Owned by the training thread.
class FrozenPrefix {
 public:
  // `modules` are frozen; they are referred to.
  explicit FrozenPrefix(std::span<const LayerModule> modules);

  // Returns the modules' output, without recording gradients. Exceptions of torch pass through.
  at::Tensor Run(const at::Tensor& input) const;

  // Covers all that decides what Run() gives for a sample in a batch like `input`: types, settings, modes, weights and
  // buffers of the modules, the batch's type and shape, and what chooses its kernels.
  cache::Fingerprint FingerprintFor(const at::Tensor& input) const;

  // Watches the weights and buffers from now on.
  cache::ContentWatch Watch() const;

 private:
  const std::span<const LayerModule> modules_;
  const std::vector<at::Tensor> tensors_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_
