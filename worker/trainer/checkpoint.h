#ifndef EGERIA_WORKER_TRAINER_CHECKPOINT_H_
#define EGERIA_WORKER_TRAINER_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/replica.h"

namespace egeria::trainer {

// Everything that a run needs to go on as if it had not stopped. Data order and augmentation are functions
// of seed, epoch and step, so that the step says all about them.
struct Checkpoint {
  std::string run;  // what has to be equal for a resume to make sense: RunIdentity()
  int64_t step = 0;
  int frozen_prefix = 0;
  int64_t applied_plan = 0;
  double seconds = 0;  // sums of the summary, up to here
  double frozen_share_steps = 0;
  double frozen_share_seconds = 0;
  std::string cache_job;                      // whose entries the cache has; "": none
  double reinvested_saving = 0;               // the training is so much longer that it takes the time without it
  std::vector<int64_t> switches;              // step, unfreeze, prefix, identical, plan; one after the other
  std::vector<at::Tensor> random_states;      // of the default generator, by rank
  std::map<std::string, at::Tensor> tensors;  // parameters, buffers, momentum
};

// The tensors of `replica`, on the host. Their names: "parameter/NAME", "buffer/NAME", "momentum/NAME".
std::map<std::string, at::Tensor> TensorsOf(Replica* replica);
// Writes them back. Errors: INVALID_ARGUMENT [CHECKPOINT_MISMATCH] a tensor is missing or of another shape.
absl::Status RestoreTensors(const std::map<std::string, at::Tensor>& tensors, Replica* replica);

// The state of torch's default generator of each rank's device, on all ranks. A collective.
// Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::StatusOr<std::vector<at::Tensor>> GatherRandomStates(c10::Device device, const worker::ProcessGroupPtr& group);
void RestoreRandomState(const at::Tensor& state, c10::Device device);

// A zip file of torch's own making, which Python's torch.load() reads as well.
absl::StatusOr<std::string> Encode(const Checkpoint& checkpoint);
// Errors: INVALID_ARGUMENT [BAD_CHECKPOINT] truncated, damaged, or not one of these.
absl::StatusOr<Checkpoint> Decode(const std::string& bytes);

// What rank 0 reads from `path`, on all ranks; nothing if there is no such file. A collective.
// Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::StatusOr<std::optional<std::string>> ReadOnRankZero(const std::string& path, int rank,
                                                          const worker::ProcessGroupPtr& group);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_CHECKPOINT_H_
