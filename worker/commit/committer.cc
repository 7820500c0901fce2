#include "worker/commit/committer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "common/base/log.h"
#include "common/base/status.h"

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

}  // namespace

Committer::Committer(ProcessGroupPtr group, PlanId applied, WaitLimits limits)
    : alone_(group == nullptr), limits_(std::move(limits)), applied_(applied), reduction_(std::move(group)) {}

Committer::~Committer() {
  if (const absl::Status status = Stop(); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<PlanId> Committer::Finish(const WaitLimits& limits) {
  if (const absl::Status status = reduction_.Finish(limits); !status.ok()) {
    return absl::IsUnavailable(status) ? Failed(absl::string_view(status.message())) : status;
  }
  const int64_t* const results = reduction_.value().const_data_ptr<int64_t>();
  minima_.assign(results + 1, results + reduction_.value().numel());
  return PlanId(*results);
}

absl::StatusOr<std::optional<PlanId>> Committer::Tick(PlanId watermark, const Riders& riders) {
  PlanId agreed = applied_;
  if (alone_) {
    agreed = watermark;
  } else {
    if (reduction_.in_flight()) {
      EGERIA_ASSIGN_OR_RETURN(agreed, Finish(limits_));
    }
    const at::Tensor numbers = ToTensor(watermark, riders ? riders(minima_) : std::vector<int64_t>());
    if (const absl::Status status = reduction_.Start(numbers, c10d::ReduceOp::MIN); !status.ok()) {
      return Failed(absl::string_view(status.message()));
    }
  }
  if (agreed <= applied_) return std::nullopt;
  applied_ = agreed;
  return agreed;
}

absl::Status Committer::Stop(std::chrono::milliseconds patience) {
  const absl::Status status = reduction_.Stop({limits_.interrupted, patience});
  return absl::IsUnavailable(status) ? Failed(absl::string_view(status.message())) : status;
}

}  // namespace egeria::worker
