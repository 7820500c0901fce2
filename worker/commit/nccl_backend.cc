// This file is compiled only where CMake found a CUDA build of torch and NCCL's header.
#include <exception>

#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
#include "worker/commit/process_group.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker::internal {

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeNcclBackend(const GroupMember& member,
                                                                  std::chrono::milliseconds timeout) {
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(member.store, member.rank, member.world_size, options);
    return backend;
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "GROUP_FAILED", "NCCL: ", MessageOf(error));
  }
}

}  // namespace egeria::worker::internal
