#ifndef EGERIA_WORKER_COMMIT_PROCESS_GROUP_H_
#define EGERIA_WORKER_COMMIT_PROCESS_GROUP_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/DeviceType.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace egeria::worker {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// Says where one process stands in its group, and through which store the members find each other.
struct GroupMember {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
};

// Makes a group over gloo, for tensors in host memory. `name` tells groups over the same store apart; all members
// must call it with the same name. It blocks until every member has called it, or `timeout`, which also bounds
// every collective of the group.
// Errors: UNAVAILABLE [GROUP_FAILED] a member did not come, or the network refused.
absl::StatusOr<ProcessGroupPtr> MakeGlooGroup(const GroupMember& member, const std::string& name,
                                              std::chrono::milliseconds timeout);

// Makes a group that reduces tensors of `device` with the device's own library, and host tensors over gloo.
// Errors: those of MakeGlooGroup; UNIMPLEMENTED [NO_BACKEND] this build has no library for the device.
absl::StatusOr<ProcessGroupPtr> MakeDeviceGroup(const GroupMember& member, const std::string& name,
                                                c10::DeviceType device, std::chrono::milliseconds timeout);

namespace internal {

// One of two files defines it: nccl_backend.cc where CMake found CUDA and NCCL, else no_nccl_backend.cc.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const GroupMember& member,
                                                                  std::chrono::milliseconds timeout);

}  // namespace internal
}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_PROCESS_GROUP_H_
