#ifndef EGERIA_WORKER_COMMIT_PARAMETER_CHECKSUM_H_
#define EGERIA_WORKER_COMMIT_PARAMETER_CHECKSUM_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// Returns xxh3-64 over the element type, shape and bits (HostBits()) of each tensor, in order. Tensors on a device are
// copied to the host first. Exceptions of torch pass through, for tensors that have no such bits.
uint64_t HashTensors(const std::vector<at::Tensor>& tensors);

// Returns whether every member of the group came with the same hash; with a null group, true. It is a collective: all
// members call it at the same point. Errors: UNAVAILABLE [CHECKSUM_FAILED] a rank is gone; those of WaitFor().
absl::StatusOr<bool> IdenticalOnAllRanks(uint64_t hash, const ProcessGroupPtr& group, const WaitLimits& limits = {});

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_PARAMETER_CHECKSUM_H_
