#include "worker/commit/rank_change.h"

#include <exception>

#include "ATen/ops/full.h"
#include "common/base/status.h"
#include "worker/commit/async_all_reduce.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

// Returns what `apply` returns. An exception of torch is a failure, too.
absl::Status TryToApply(const std::function<absl::Status()>& apply) {
  try {
    return apply();
  } catch (const std::exception& error) {
    return absl::InternalError(MessageOf(error));
  }
}

// Returns whether every rank says true.
absl::StatusOr<bool> AllAgree(bool own, const ProcessGroupPtr& group, const WaitLimits& limits) {
  if (group == nullptr) return own;
  AsyncAllReduce reduction(group);
  absl::Status status = reduction.Start(at::full({1}, int64_t{own}, at::kLong), c10d::ReduceOp::MIN);
  if (status.ok()) status = reduction.Finish(limits);
  if (status.ok()) return *reduction.value().const_data_ptr<int64_t>() != 0;
  reduction.Stop({limits.interrupted, std::chrono::milliseconds(0)}).IgnoreError();
  if (!absl::IsUnavailable(status)) return status;
  return NamedError(absl::StatusCode::kUnavailable, "COMMIT_FAILED",
                    "the ranks could not agree on a change: ", absl::string_view(status.message()));
}

}  // namespace

absl::Status ChangeAllOrNone(const ProcessGroupPtr& group, const RankChange& change, const WaitLimits& limits) {
  const absl::Status own = TryToApply(change.apply);
  const absl::StatusOr<bool> agreed = AllAgree(own.ok(), group, limits);
  if (agreed.ok() && *agreed) return absl::OkStatus();
  change.undo();
  if (!agreed.ok()) return agreed.status();
  return NamedError(absl::StatusCode::kAborted, "CHANGE_UNDONE",
                    own.ok() ? "it failed on another rank" : absl::string_view(own.message()));
}

}  // namespace egeria::worker
