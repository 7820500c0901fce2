#include "worker/commit/async_all_reduce.h"

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

// Keeps a group for good, in reach of leak checkers.
void NeverDestroy(ProcessGroupPtr group) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<ProcessGroupPtr>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(group));
}

}  // namespace

absl::Status AsyncAllReduce::Start(at::Tensor value, c10d::ReduceOp operation) {
  EGERIA_CHECK(work_ == nullptr);
  value_ = std::move(value);
  try {
    std::vector<at::Tensor> tensors = {value_};
    c10d::AllreduceOptions options;
    options.reduceOp = std::move(operation);
    work_ = group_->allreduce(tensors, options);
  } catch (const std::exception& error) {
    work_ = nullptr;
    return NamedError(absl::StatusCode::kUnavailable, "RANK_GONE", MessageOf(error));
  }
  return absl::OkStatus();
}

absl::Status AsyncAllReduce::Finish(const WaitLimits& limits) {
  const absl::Status status = WaitFor(work_.get(), limits);
  if (status.ok() || absl::IsUnavailable(status)) work_ = nullptr;
  return status;
}

absl::Status AsyncAllReduce::Stop(const WaitLimits& limits) {
  if (work_ == nullptr) return absl::OkStatus();
  const absl::Status status = Finish(limits);
  if (work_ != nullptr) {
    work_ = nullptr;
    NeverDestroy(group_);
  }
  return status;
}

}  // namespace egeria::worker
