#include "worker/commit/committer.h"

#include <exception>
#include <utility>
#include <vector>

#include "ATen/ops/full.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

absl::Status Failed(const std::exception& error) {
  return NamedError(absl::StatusCode::kUnavailable, "COMMIT_FAILED",
                    "the ranks could not agree on a plan: ", MessageOf(error));
}

}  // namespace

Committer::Committer(ProcessGroupPtr group, PlanId applied) : group_(std::move(group)), applied_(applied) {}

Committer::~Committer() {
  if (const absl::Status status = Stop(); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<PlanId> Committer::Finish() {
  const auto work = std::exchange(work_, nullptr);
  try {
    work->wait();
    return PlanId(*value_.const_data_ptr<int64_t>());
  } catch (const std::exception& error) {
    return Failed(error);
  }
}

absl::StatusOr<std::optional<PlanId>> Committer::Tick(PlanId watermark) {
  PlanId agreed = applied_;
  if (group_ == nullptr) {
    agreed = watermark;
  } else {
    if (work_ != nullptr) {
      EGERIA_ASSIGN_OR_RETURN(agreed, Finish());
    }
    try {
      value_ = at::full({1}, watermark.value(), at::kLong);
      std::vector<at::Tensor> tensors = {value_};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MIN;
      work_ = group_->allreduce(tensors, options);
    } catch (const std::exception& error) {
      work_ = nullptr;
      return Failed(error);
    }
  }
  if (agreed <= applied_) return std::nullopt;
  applied_ = agreed;
  return agreed;
}

absl::Status Committer::Stop() {
  if (work_ == nullptr) return absl::OkStatus();
  return Finish().status();
}

}  // namespace egeria::worker
