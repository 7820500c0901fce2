#include "worker/commit/committer.h"

#include <algorithm>
#include <limits>
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

// This is larger than any content, so that it vanishes in a minimum.
constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();
// The numbers that are always advertised: the watermark, and both numbers of a content, each as itself and negated, so
// that the minima are the least and the greatest one.
constexpr size_t kNumbers = 6;

at::Tensor ToTensor(const std::vector<int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

}  // namespace

Committer::Committer(ProcessGroupPtr group, PlanId applied, WaitLimits limits)
    : alone_(group == nullptr),
      rank_(alone_ ? 0 : group->getRank()),
      ranks_(alone_ ? 1 : group->getSize()),
      limits_(std::move(limits)),
      applied_(applied),
      passed_(applied),
      reduction_(std::move(group)) {}

Committer::~Committer() {
  if (const absl::Status status = Stop(); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<Committer::Outcome> Committer::Tick(const HeldPlans& held, const Riders& riders) {
  Outcome outcome;
  if (alone_) {
    if (held.watermark > applied_) outcome.apply = applied_ = held.watermark;
    return outcome;
  }
  std::vector<int64_t> minima;
  if (reduction_.in_flight()) {
    EGERIA_RETURN_IF_ERROR(CommitStatus(reduction_.Finish(limits_)));
    const int64_t* const results = reduction_.value().const_data_ptr<int64_t>();
    minima.assign(results + Hear(results, &outcome), results + reduction_.value().numel());
  }
  const std::optional<std::vector<int64_t>> others = riders ? riders(minima) : std::vector<int64_t>();
  if (others.has_value()) {
    std::vector<int64_t> numbers = Advertise(held);
    numbers.insert(numbers.end(), others->begin(), others->end());
    EGERIA_RETURN_IF_ERROR(CommitStatus(reduction_.Start(ToTensor(numbers), c10d::ReduceOp::MIN)));
  }
  return outcome;
}

std::vector<int64_t> Committer::Advertise(const HeldPlans& held) const {
  const PlanId told = asked_.value_or(held.watermark);
  const PlanContent content = told > passed_ ? held.content(told) : PlanContent();
  std::vector<int64_t> numbers = {held.watermark.value(), -held.watermark.value(), content.generation,
                                  -content.generation,    content.frozen_prefix,   -content.frozen_prefix};
  if (!disputed_.has_value()) return numbers;
  const PlanContent own = held.content(*disputed_);
  for (int rank = 0; rank < ranks_; ++rank) {
    numbers.push_back(rank == rank_ ? own.generation : kNothing);
    numbers.push_back(rank == rank_ ? own.frozen_prefix : kNothing);
  }
  return numbers;
}

size_t Committer::Hear(const int64_t* minima, Outcome* outcome) {
  const PlanId oldest(minima[0]), newest(-minima[1]);
  size_t heard = kNumbers;
  if (disputed_.has_value()) {
    Dispute& dispute = outcome->dispute.emplace();
    dispute.plan = *std::exchange(disputed_, std::nullopt);
    for (int rank = 0; rank < ranks_; ++rank, heard += 2) {
      dispute.by_rank.push_back({minima[heard], minima[heard + 1]});
    }
  }
  // Ranks that had different newest plans, and had not been asked for one, told of different plans.
  const PlanId told = asked_.value_or(oldest == newest ? oldest : PlanId());
  if (told > passed_) {
    passed_ = told;
    const PlanContent least{minima[2], minima[4]}, greatest{-minima[3], -minima[5]};
    if (least != greatest) {
      disputed_ = told;
    } else if (!least.is_void()) {
      outcome->apply = applied_ = told;
    }
  }
  asked_ = oldest > passed_ ? std::optional(oldest) : std::nullopt;
  settled_ = oldest == newest && !asked_.has_value() && !disputed_.has_value();
  return heard;
}

absl::Status Committer::Stop(std::chrono::milliseconds patience) {
  return CommitStatus(reduction_.Stop({limits_.interrupted, patience}));
}

}  // namespace egeria::worker
