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

// A checkpoint holds everything that a run needs to go on as if it had not stopped. Data order and augmentation are
// functions of seed, epoch and step, so that the step says all about them.
struct Checkpoint {
  std::string run;  // all that has to be equal for a resume to make sense
  int64_t step = 0;
  int frozen_prefix = 0;
  int64_t applied_plan = 0;
  double seconds = 0;  // this and the next two are the summary's sums up to here
  double frozen_share_steps = 0;
  double frozen_share_seconds = 0;
  std::optional<double> learning_rate_sum;    // LearningRates::sum(); checkpoints of older versions have none
  std::string cache_job;                      // the job whose entries the cache has; "": none
  double reinvested_saving = 0;               // the training is so much longer that it takes the time without it
  std::vector<int64_t> switches;              // step, unfreeze, prefix, identical and plan of each, one after the other
  std::vector<at::Tensor> random_states;      // the default generator's, by rank
  std::map<std::string, at::Tensor> tensors;  // parameters, buffers, momentum
};

// Copies the tensors of `replica` to the host. Their names are "parameter/NAME", "buffer/NAME", "momentum/NAME".
std::map<std::string, at::Tensor> TensorsOf(Replica* replica);
// Writes them back. Errors: INVALID_ARGUMENT [CHECKPOINT_MISMATCH] a tensor is missing or of another shape.
absl::Status RestoreTensors(const std::map<std::string, at::Tensor>& tensors, Replica* replica);

// Returns the checkpoint of a run on `before` ranks as one of a run on `now` ranks: its steps become those at which
// as many samples have been seen, rounded down.
Checkpoint ForOtherRanks(Checkpoint checkpoint, int before, int now);

// Gives all ranks the state of torch's default generator of each rank's device. It is a collective.
// Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::StatusOr<std::vector<at::Tensor>> GatherRandomStates(c10::Device device, const worker::ProcessGroupPtr& group);
void RestoreRandomState(const at::Tensor& state, c10::Device device);

// Makes a zip file of torch's own kind, which Python's torch.load() reads as well.
absl::StatusOr<std::string> Encode(const Checkpoint& checkpoint);
// Errors: INVALID_ARGUMENT [BAD_CHECKPOINT] truncated, damaged, or not one of these.
absl::StatusOr<Checkpoint> Decode(const std::string& bytes);

// Gives all ranks what rank 0 reads from `path`; nothing if there is no such file. It is a collective.
// Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::StatusOr<std::optional<std::string>> ReadOnRankZero(const std::string& path, int rank,
                                                          const worker::ProcessGroupPtr& group);

// Gives every rank the parameters, buffers and momenta of rank 0. It is a collective.
// Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::Status TakeFromRankZero(Replica* replica, int rank, const worker::ProcessGroupPtr& group);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_CHECKPOINT_H_
