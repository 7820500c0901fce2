#ifndef EGERIA_WORKER_AGENT_REQUESTS_H_
#define EGERIA_WORKER_AGENT_REQUESTS_H_

#include <cstdint>

#include "common/base/ids.h"
#include "common/plasticity/activation_metric.h"

// The controller asks these of a rank. Versions tell two requests of one kind apart; uploads repeat them.
namespace egeria::worker {

using plasticity::ActivationMetric;

// "Probe this module at every step that is a multiple of interval_steps": the answer is a Sample each time, or, where
// the module has a local_reference, a Reading.
struct SamplingRequest {
  ModuleIndex module;
  ModuleIndex first_module;  // differs from module only for the whole-prefix scope
  int interval_steps = 1;
  int batch_size = 2;
  int64_t version = 0;
  ActivationMetric metric = ActivationMetric::kSpLoss;
};

// "Send the weights of modules first_module..module, one Snapshot each, unless this version has been sent." Where a
// module has a local_reference, the Snapshot has no tensors. This process then takes the weights as the reference of
// the readings that follow.
struct SnapshotRequest {
  ModuleIndex module;
  ModuleIndex first_module;
  int64_t version = 0;
};

// "Tell of the gradients of modules first_module and behind at every step that is a multiple of interval_steps": the
// answer is a GradientReading each time. Gradients of frozen modules among them are computed for it, and thrown away.
struct GradientRequest {
  ModuleIndex first_module;
  int interval_steps = 1;
  int64_t version = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_REQUESTS_H_
