#include "worker/trainer/replica.h"

#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "ATen/Context.h"
#include "common/base/status.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/commit/torch_status.h"
#include "worker/trainer/model/models.h"

namespace egeria::trainer {
namespace {

// torch has one default generator per process. The seed and the draws that follow it belong together, also where
// several ranks run as threads of one process.
absl::StatusOr<std::vector<worker::StagedBlock>> MakeSeededModel(const ReplicaOptions& options) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  at::manual_seed(options.seed);
  return MakeModel(options.model, options.channels, options.classes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const ReplicaOptions& options,
                                                       const worker::ProcessGroupPtr& group) {
  std::unique_ptr<Replica> replica(new Replica());
  try {
    EGERIA_ASSIGN_OR_RETURN(const std::vector<worker::StagedBlock> blocks, MakeSeededModel(options));
    for (const worker::StagedBlock& block : blocks) block.block->to(options.device);
    EGERIA_ASSIGN_OR_RETURN(replica->modules_, worker::MakeLayerModules(blocks, options.partition));
    std::vector<at::Tensor> parameters, all;
    for (const worker::LayerModule& module : replica->modules_) {
      for (const worker::NamedTensor& parameter : module.parameters()) parameters.push_back(parameter.tensor);
      for (const worker::NamedTensor& buffer : module.buffers()) all.push_back(buffer.tensor);
    }
    all.insert(all.end(), parameters.begin(), parameters.end());
    worker::BroadcastFromRankZero(group, all);
    torch::optim::SGDOptions sgd(/*lr=*/0);
    sgd.momentum(options.momentum).weight_decay(options.weight_decay);
    replica->optimizer_ = std::make_unique<torch::optim::SGD>(parameters, sgd);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "MODEL_FAILED", worker::MessageOf(error));
  }
  Replica* const self = replica.get();
  // Old momentum would make the first step of an unfrozen module about ten times too long.
  replica->freezer_ =
      std::make_unique<worker::ModuleFreezer>(&replica->modules_, [self](const std::vector<at::Tensor>& unfrozen) {
        for (const at::Tensor& parameter : unfrozen) {
          self->optimizer_->state().erase(parameter.unsafeGetTensorImpl());
        }
      });
  replica->reducer_ = std::make_unique<worker::GradientReducer>(group);
  return replica;
}

void Replica::SetTraining(bool on) {
  for (const worker::LayerModule& module : modules_) module.SetTraining(on);
}

void Replica::SetLearningRate(double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

std::vector<double> Replica::LearningRates() {
  std::vector<double> rates;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

worker::LearningRates::ModuleGroups Replica::ModuleGroups() {
  std::map<const void*, int> group_of;
  int number = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) group_of[parameter.unsafeGetTensorImpl()] = number;
    ++number;
  }
  worker::LearningRates::ModuleGroups groups;
  for (const worker::LayerModule& module : modules_) {
    std::vector<int>& own = groups.emplace_back();
    for (const worker::NamedTensor& parameter : module.parameters()) {
      const auto found = group_of.find(parameter.tensor.unsafeGetTensorImpl());
      if (found != group_of.end()) own.push_back(found->second);
    }
  }
  return groups;
}

at::Tensor Replica::Momentum(const at::Tensor& parameter) {
  const auto found = optimizer_->state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer_->state().end()) return {};
  return static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
}

void Replica::SetMomentum(const at::Tensor& parameter, const at::Tensor& momentum) {
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(momentum);
  optimizer_->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

uint64_t Replica::Hash() const {
  std::vector<at::Tensor> tensors;
  for (const worker::LayerModule& module : modules_) {
    for (const worker::NamedTensor& parameter : module.parameters()) tensors.push_back(parameter.tensor);
    for (const worker::NamedTensor& buffer : module.buffers()) tensors.push_back(buffer.tensor);
  }
  return worker::HashTensors(tensors);
}

}  // namespace egeria::trainer
