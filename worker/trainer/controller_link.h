#ifndef EGERIA_WORKER_TRAINER_CONTROLLER_LINK_H_
#define EGERIA_WORKER_TRAINER_CONTROLLER_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "worker/agent/agent.h"
#include "worker/commit/process_group.h"
#include "worker/freeze/layer_module.h"
#include "worker/trainer/options.h"

namespace egeria::trainer {

// What the controller needs to know of this process. Pointers are only used during the call.
struct LinkDescription {
  const Options* options = nullptr;
  const worker::GroupMember* member = nullptr;
  const std::vector<worker::LayerModule>* modules = nullptr;
  std::vector<int64_t> image_shape;  // channels, height, width
  c10::Device device = c10::kCPU;
  std::vector<double> step_shares;  // the result of StepSharesOfRankZero()
  int64_t total_steps = 0;
  std::vector<double> planned_learning_rates;
  double saved_before = 0;      // the part of the training's time that was saved before `step`
  double mean_rate_before = 0;  // the mean of the learning rates over the steps before `step`; 0: not known
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
};

// An agent that keeps in touch with the controller, and what it has promised to send.
struct LinkedAgent {
  std::unique_ptr<worker::Agent> agent;
  // A snapshot of each module consists of these: the weights that its graph names.
  std::vector<std::vector<worker::NamedTensor>> snapshot_tensors;
};

// Traces the layer modules and starts an agent. Does not wait for the controller, nor fail for want of one.
// A module that cannot be traced is registered without a graph, with the reason, and never freezes.
// Errors: those of Agent::Start() and ShareFromRankZero().
absl::StatusOr<LinkedAgent> LinkController(const LinkDescription& description);

// Returns where this process serves its metrics: `address` (HOST:PORT or PORT) with the local rank added to the port,
// unless that is 0, so that several ranks of a machine do not collide.
std::string MetricsAddress(const std::string& address, int local_rank);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_CONTROLLER_LINK_H_
