#include "worker/commit/committer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace egeria::worker {
namespace {

// Says of a collective that has failed that the ranks cannot agree any more.
absl::Status CommitStatus(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return NamedError(absl::StatusCode::kUnavailable, "COMMIT_FAILED",
                    "the ranks could not agree on a plan: ", absl::string_view(status.message()));
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

absl::StatusOr<std::optional<PlanId>> Committer::Tick(PlanId watermark, const Riders& riders) {
  if (alone_) return Apply(watermark);
  std::optional<PlanId> plan;
  std::vector<int64_t> minima;
  if (reduction_.in_flight()) {
    EGERIA_RETURN_IF_ERROR(CommitStatus(reduction_.Finish(limits_)));
    const int64_t* const results = reduction_.value().const_data_ptr<int64_t>();
    minima.assign(results, results + reduction_.value().numel());
    plan = Apply(PlanId(minima.front()));
  }
  const std::optional<std::vector<int64_t>> numbers = riders ? riders(minima) : std::vector<int64_t>();
  if (numbers.has_value()) {
    EGERIA_RETURN_IF_ERROR(CommitStatus(reduction_.Start(ToTensor(watermark, *numbers), c10d::ReduceOp::MIN)));
  }
  return plan;
}

std::optional<PlanId> Committer::Apply(PlanId agreed) {
  if (agreed <= applied_) return std::nullopt;
  applied_ = agreed;
  return agreed;
}

absl::Status Committer::Stop(std::chrono::milliseconds patience) {
  return CommitStatus(reduction_.Stop({limits_.interrupted, patience}));
}

}  // namespace egeria::worker
