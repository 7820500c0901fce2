#ifndef EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_
#define EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/cache/entry/fingerprint.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {

// The frozen front of a model. Owned by the training thread.
class FrozenPrefix {
 public:
  // `modules` are referred to, and are frozen.
  explicit FrozenPrefix(std::span<const LayerModule> modules);

  // Their output, without recording gradients. Exceptions of torch pass through.
  at::Tensor Run(const at::Tensor& input) const;

  // Of all that decides what Run() gives for a sample in a batch like `input`: types, settings, modes, weights and
  // buffers of the modules, the batch's type and shape, and what chooses its kernels.
  cache::Fingerprint FingerprintFor(const at::Tensor& input) const;

  // Whether torch has counted no write to a weight or buffer since the constructor.
  bool unchanged() const;

  // Weights and buffers.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  int64_t Writes() const;

  const std::span<const LayerModule> modules_;
  const std::vector<at::Tensor> tensors_;
  const int64_t writes_;  // to all tensors; they only rise
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_FROZEN_PREFIX_H_
