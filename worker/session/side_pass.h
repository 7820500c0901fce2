#ifndef EGERIA_WORKER_SESSION_SIDE_PASS_H_
#define EGERIA_WORKER_SESSION_SIDE_PASS_H_

#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {

// Guards forward and backward passes of a model that are none of training's. At the end of its life it puts back, to
// the bit, what they change: buffers, the random state, which parameters ask for a gradient. It is owned by the
// training thread.
class SidePass {
 public:
  SidePass(const std::vector<LayerModule>& modules, c10::Device device);
  ~SidePass();
  SidePass(const SidePass&) = delete;
  SidePass& operator=(const SidePass&) = delete;

  void AskForGradient(at::Tensor parameter);

 private:
  const c10::Device device_;
  const at::Tensor random_state_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // each with a copy of its content
  std::vector<at::Tensor> asked_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_SIDE_PASS_H_
