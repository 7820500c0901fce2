#ifndef EGERIA_WORKER_TRAINER_REPLICA_H_
#define EGERIA_WORKER_TRAINER_REPLICA_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "torch/optim/sgd.h"
#include "worker/freeze/gradient_reducer.h"
#include "worker/freeze/layer_module.h"
#include "worker/freeze/module_freezer.h"
#include "worker/planning/learning_rates.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/options.h"

namespace egeria::trainer {

struct ReplicaOptions {
  std::string model;
  int channels = 3;
  int classes = 10;
  worker::PartitionOptions partition;
  double momentum = 0.9;
  double weight_decay = 0;
  uint64_t seed = 1;
  c10::Device device = c10::kCPU;
};

// A replica is one rank's copy of the model with its optimizer and what freezes it: everything that a step needs but
// data and session. The model's blocks stay in the members' order of construction; nothing may be moved, as the
// parts refer to each other. It is owned by the training thread.
class Replica {
 public:
  // Makes the model from the seed, the same on all ranks, and gives every rank rank 0's weights.
  // Errors: INVALID_ARGUMENT [UNKNOWN_MODEL], [BAD_PARTITION]; INTERNAL [MODEL_FAILED].
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const ReplicaOptions& options,
                                                       const worker::ProcessGroupPtr& group);

  const std::vector<worker::LayerModule>& modules() const { return modules_; }
  torch::optim::SGD& optimizer() { return *optimizer_; }
  worker::ModuleFreezer& freezer() { return *freezer_; }
  worker::GradientReducer& reducer() { return *reducer_; }

  void SetTraining(bool on);
  void SetLearningRate(double rate);
  // The rates in force, of all parameter groups, and the groups of each layer module's parameters.
  std::vector<double> LearningRates();
  worker::LearningRates::ModuleGroups ModuleGroups();
  // Drops gradients, so that no stale one can move a weight.
  void ZeroGrad() { optimizer_->zero_grad(); }

  // Returns the momentum of a parameter. It is undefined before the first step and after the parameter has unfrozen.
  at::Tensor Momentum(const at::Tensor& parameter);
  void SetMomentum(const at::Tensor& parameter, const at::Tensor& momentum);

  // Returns xxh3-64 over all parameters and buffers.
  uint64_t Hash() const;

 private:
  Replica() = default;

  std::vector<worker::LayerModule> modules_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::unique_ptr<worker::ModuleFreezer> freezer_;
  std::unique_ptr<worker::GradientReducer> reducer_;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_REPLICA_H_
