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

absl::StatusOr<std::optional<PlanId>> Committer::Finish() {
  minima_.clear();
  if (!reduction_.in_flight()) return std::nullopt;
  if (const absl::Status status = reduction_.Finish(limits_); !status.ok()) {
    return absl::IsUnavailable(status) ? Failed(absl::string_view(status.message())) : status;
  }
  const int64_t* const results = reduction_.value().const_data_ptr<int64_t>();
  minima_.assign(results + 1, results + reduction_.value().numel());
  return PlanId(*results);
}

absl::StatusOr<std::optional<PlanId>> Committer::Tick(PlanId watermark, const Riders& riders) {
  std::optional<PlanId> agreed = watermark;
  if (!alone_) {
    EGERIA_ASSIGN_OR_RETURN(agreed, Finish());
  }
  const bool applies = agreed.has_value() && *agreed > applied_;
  if (applies) applied_ = *agreed;
  if (!alone_) EGERIA_RETURN_IF_ERROR(Advertise(watermark, riders));
  return applies ? agreed : std::nullopt;
}

absl::Status Committer::Advertise(PlanId watermark, const Riders& riders) {
  const std::optional<std::vector<int64_t>> numbers = riders ? riders(minima_) : std::vector<int64_t>();
  if (!numbers.has_value()) return absl::OkStatus();
  const absl::Status status = reduction_.Start(ToTensor(watermark, *numbers), c10d::ReduceOp::MIN);
  return status.ok() ? status : Failed(absl::string_view(status.message()));
}

absl::Status Committer::Stop(std::chrono::milliseconds patience) {
  const absl::Status status = reduction_.Stop({limits_.interrupted, patience});
  return absl::IsUnavailable(status) ? Failed(absl::string_view(status.message())) : status;
}

}  // namespace egeria::worker
