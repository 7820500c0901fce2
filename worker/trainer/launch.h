#ifndef EGERIA_WORKER_TRAINER_LAUNCH_H_
#define EGERIA_WORKER_TRAINER_LAUNCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "worker/commit/process_group.h"

namespace egeria::trainer {

// This process's place in the job, from torchrun's environment; a world of one without it.
struct Launch {
  worker::GroupMember member;
  int local_rank = 0;
  worker::ProcessGroupPtr training_group;  // null for a world of one, as the next
  worker::ProcessGroupPtr commit_group;
};

// Joins the job: the store that torchrun's agent hosts (or rank 0 does, under another launcher that sets
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT), and two process groups. `restarts` keeps the keys of
// restarted processes apart.
// Errors: INVALID_ARGUMENT [BAD_ENVIRONMENT]; UNAVAILABLE [NO_STORE], [GROUP_FAILED].
absl::StatusOr<Launch> JoinLaunch(int64_t restarts, c10::Device device);

// `value` of rank 0, on all ranks.
// Errors: UNAVAILABLE [NO_STORE].
absl::StatusOr<std::string> ShareFromRankZero(const worker::GroupMember& member, const std::string& key,
                                              const std::string& value);

// "auto" is the accelerator of this machine if torch was built for one, else the CPU. Several processes on
// one machine take devices by their local rank.
// Errors: INVALID_ARGUMENT [BAD_DEVICE].
absl::StatusOr<c10::Device> ChooseDevice(const std::string& name);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_LAUNCH_H_
