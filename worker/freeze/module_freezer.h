#ifndef EGERIA_WORKER_FREEZE_MODULE_FREEZER_H_
#define EGERIA_WORKER_FREEZE_MODULE_FREEZER_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/freeze/layer_module.h"

namespace egeria::worker {

// Freezes a prefix of a model's layer modules, and unfreezes it.
//
// Freezing a module switches requires_grad off, makes gradients undefined (an optimizer then skips the parameters,
// which stay in their groups: no weight decay, no momentum) and pins modes to eval. Unfreezing is the inverse:
// parameters that never asked for a gradient still do not, and modes become what was last asked for.
// The gradient reducer has to be rebuilt afterwards, from active_parameters().
//
// It is owned by the training thread, and used between steps only: after the optimizer's step and before the
// next forward pass.
class ModuleFreezer {
 public:
  struct Change {
    int from = 0;
    int to = 0;
    bool unfreezes() const { return to < from; }
  };

  // The hook is told of the parameters that train again after Apply(). It is the place to reset SGD's momentum, which
  // would make the first step ten times too long; Adam's state is better kept.
  using UnfreezeHook = std::function<void(const std::vector<at::Tensor>&)>;

  // `modules` are referred to and must outlive the freezer. All of them are active at first.
  ModuleFreezer(const std::vector<LayerModule>* modules, UnfreezeHook on_unfreeze);

  // Makes modules 0..prefix-1 frozen and all others active.
  // Errors: INVALID_ARGUMENT [BAD_PREFIX] negative, or would freeze the last module.
  absl::StatusOr<Change> Apply(int prefix);
  // Makes modules 0..prefix-1 frozen and all others active, as they were before an Apply() of the same moment that has
  // to be undone or has stopped half-way. No hook is called: what has not trained meanwhile has no stale momentum.
  void TakeBack(int prefix);

  int frozen_prefix() const { return frozen_prefix_; }
  const std::vector<LayerModule>& modules() const { return *modules_; }

  // Returns the parameters of `module` that asked for a gradient before anything was frozen.
  std::vector<at::Tensor> trainable_parameters(int module) const;

  // Returns the share of the model's parameters that is frozen, 0..1.
  double frozen_share() const;
  // Return what belongs to the modules that are trained now, in forward order.
  std::vector<at::Tensor> active_parameters() const;
  std::vector<at::Tensor> active_buffers() const;

 private:
  void Freeze(size_t module);
  void Unfreeze(size_t module, std::vector<at::Tensor>* unfrozen);

  const std::vector<LayerModule>* const modules_;
  const UnfreezeHook on_unfreeze_;
  std::vector<std::vector<bool>> trainable_;  // whether each parameter of each module asked for a gradient at the start
  int frozen_prefix_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_MODULE_FREEZER_H_
