#include "worker/freeze/module_freezer.h"

#include <utility>

#include "common/base/status.h"

namespace egeria::worker {

ModuleFreezer::ModuleFreezer(const std::vector<LayerModule>* modules, UnfreezeHook on_unfreeze)
    : modules_(modules), on_unfreeze_(std::move(on_unfreeze)) {
  for (const LayerModule& module : *modules_) {
    std::vector<bool>& trainable = trainable_.emplace_back();
    for (const NamedTensor& parameter : module.parameters()) {
      trainable.push_back(parameter.tensor.requires_grad());
    }
  }
}

void ModuleFreezer::Freeze(size_t module) {
  for (const NamedTensor& parameter : (*modules_)[module].parameters()) {
    parameter.tensor.set_requires_grad(false);
    parameter.tensor.mutable_grad().reset();
  }
  (*modules_)[module].Pin();
}

void ModuleFreezer::Unfreeze(size_t module, std::vector<at::Tensor>* unfrozen) {
  const auto& parameters = (*modules_)[module].parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!trainable_[module][i]) continue;
    parameters[i].tensor.set_requires_grad(true);
    unfrozen->push_back(parameters[i].tensor);
  }
  (*modules_)[module].Unpin();
}

absl::StatusOr<ModuleFreezer::Change> ModuleFreezer::Apply(int prefix) {
  if (prefix < 0 || static_cast<size_t>(prefix) >= modules_->size()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PREFIX", "cannot freeze ", prefix, " of ",
                      modules_->size(), " layer modules: the last one never freezes");
  }
  const Change change{frozen_prefix_, prefix};
  for (int module = change.from; module < change.to; ++module) Freeze(module);
  std::vector<at::Tensor> unfrozen;
  for (int module = change.to; module < change.from; ++module) Unfreeze(module, &unfrozen);
  frozen_prefix_ = prefix;
  if (!unfrozen.empty() && on_unfreeze_) on_unfreeze_(unfrozen);
  return change;
}

void ModuleFreezer::TakeBack(int prefix) {
  std::vector<at::Tensor> unfrozen;
  for (size_t module = 0; module < modules_->size(); ++module) {
    if (static_cast<int>(module) < prefix) {
      Freeze(module);
    } else {
      Unfreeze(module, &unfrozen);
    }
  }
  frozen_prefix_ = prefix;
}

std::vector<at::Tensor> ModuleFreezer::trainable_parameters(int module) const {
  const auto& parameters = (*modules_)[module].parameters();
  std::vector<at::Tensor> trainable;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (trainable_[module][i]) trainable.push_back(parameters[i].tensor);
  }
  return trainable;
}

double ModuleFreezer::frozen_share() const {
  int64_t frozen = 0, total = 0;
  for (size_t i = 0; i < modules_->size(); ++i) {
    total += (*modules_)[i].parameter_count();
    if (static_cast<int>(i) < frozen_prefix_) frozen += (*modules_)[i].parameter_count();
  }
  return total == 0 ? 0 : static_cast<double>(frozen) / static_cast<double>(total);
}

std::vector<at::Tensor> ModuleFreezer::active_parameters() const {
  std::vector<at::Tensor> active;
  for (size_t i = frozen_prefix_; i < modules_->size(); ++i) {
    for (const NamedTensor& parameter : (*modules_)[i].parameters()) {
      if (parameter.tensor.requires_grad()) active.push_back(parameter.tensor);
    }
  }
  return active;
}

std::vector<at::Tensor> ModuleFreezer::active_buffers() const {
  std::vector<at::Tensor> active;
  for (size_t i = frozen_prefix_; i < modules_->size(); ++i) {
    for (const NamedTensor& buffer : (*modules_)[i].buffers()) active.push_back(buffer.tensor);
  }
  return active;
}

}  // namespace egeria::worker
