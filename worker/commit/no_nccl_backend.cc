#include "common/base/status.h"
#include "worker/commit/process_group.h"

namespace egeria::worker::internal {

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const GroupMember& member,
                                                                  std::chrono::milliseconds timeout) {
  return NamedError(absl::StatusCode::kUnimplemented, "NO_BACKEND",
                    "built without NCCL: train on the CPU, or build against a CUDA build of torch");
}

}  // namespace egeria::worker::internal
