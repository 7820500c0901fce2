#ifndef EGERIA_WORKER_TRAINER_STEP_SHARES_H_
#define EGERIA_WORKER_TRAINER_STEP_SHARES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "worker/commit/process_group.h"
#include "worker/freeze/layer_module.h"

namespace egeria::trainer {

// By module, the part of the time of a training step with nothing frozen that freezing it saves once all before it are
// frozen, 0..1: its backward pass and its part of the optimizer's step. Measured in a few passes on the side, on a
// batch of zeros of `batch_shape`; nothing of the modules is changed, to the bit. Takes the time of a few steps, and
// for its duration the memory of another copy of the parameters. Exceptions of torch pass through.
std::vector<double> MeasureStepShares(const std::vector<worker::LayerModule>& modules,
                                      const std::vector<int64_t>& batch_shape, c10::Device device);

// Rank 0's measurement on all ranks, as one job has one shape; empty where it fails, with a warning.
// Errors: those of ShareFromRankZero().
absl::StatusOr<std::vector<double>> StepSharesOfRankZero(const worker::GroupMember& member,
                                                         const std::vector<worker::LayerModule>& modules,
                                                         const std::vector<int64_t>& batch_shape, c10::Device device);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_STEP_SHARES_H_
