#include "worker/commit/committer.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

template <typename... Args>
absl::Status Failed(const Args&... reason) {
  return NamedError(absl::StatusCode::kUnavailable, "COMMIT_FAILED", "the ranks could not agree on a plan: ",
                    reason...);
}

at::Tensor ToTensor(PlanId watermark, const std::vector<int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size()) + 1}, at::kLong);
  int64_t* out = tensor.mutable_data_ptr<int64_t>();
  *out++ = watermark.value();
  std::copy(values.begin(), values.end(), out);
  return tensor;
}

// Keeps a group for good, in reach of leak checkers.
void NeverDestroy(ProcessGroupPtr group) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<ProcessGroupPtr>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(group));
}

}  // namespace

Committer::Committer(ProcessGroupPtr group, PlanId applied, WaitLimits limits)
    : group_(std::move(group)), limits_(std::move(limits)), applied_(applied) {}

Committer::~Committer() {
  if (const absl::Status status = Stop(); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<PlanId> Committer::Finish(const WaitLimits& limits) {
  if (const absl::Status status = WaitFor(work_.get(), limits); !status.ok()) {
    if (!absl::IsUnavailable(status)) return status;
    work_ = nullptr;
    return Failed(absl::string_view(status.message()));
  }
  work_ = nullptr;
  const int64_t* const results = value_.const_data_ptr<int64_t>();
  minima_.assign(results + 1, results + value_.numel());
  return PlanId(*results);
}

absl::StatusOr<std::optional<PlanId>> Committer::Tick(PlanId watermark, const Riders& riders) {
  PlanId agreed = applied_;
  if (group_ == nullptr) {
    agreed = watermark;
  } else {
    if (work_ != nullptr) {
      EGERIA_ASSIGN_OR_RETURN(agreed, Finish(limits_));
    }
    try {
      value_ = ToTensor(watermark, riders ? riders(minima_) : std::vector<int64_t>());
      std::vector<at::Tensor> tensors = {value_};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MIN;
      work_ = group_->allreduce(tensors, options);
    } catch (const std::exception& error) {
      work_ = nullptr;
      return Failed(MessageOf(error));
    }
  }
  if (agreed <= applied_) return std::nullopt;
  applied_ = agreed;
  return agreed;
}

absl::Status Committer::Stop(std::chrono::milliseconds patience) {
  if (work_ == nullptr) return absl::OkStatus();
  const absl::Status status = Finish({limits_.interrupted, patience}).status();
  if (work_ != nullptr) {
    work_ = nullptr;
    NeverDestroy(group_);
  }
  return status;
}

}  // namespace egeria::worker
