#include "controller/web/job_history.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/monotonic.h"
#include "common/policy/policy_config.h"
#include "common/policy/policy_proto.h"
#include "controller/job/policy_inputs.h"

namespace egeria::controller {
namespace {

constexpr size_t kPointsOfAll = 16'384;  // the curves of all modules together have no more
constexpr size_t kCurvesOfAModule = 3;
constexpr size_t kPointsOfLearningRate = 1'024;

}  // namespace

absl::Status JobHistory::Update(const JobManager& manager, absl::Duration patience) {
  const absl::Time end = MonotonicNow() + patience;
  complete_ = false;
  while (!complete_ && MonotonicNow() < end) {
    const absl::StatusOr<std::vector<v1::ExportRecord>> records = manager.ExportJob(job_, &cursor_);
    if (absl::IsAborted(records.status())) {  // a checkpoint has undone what came after it
      cursor_ = ExportCursor();
      continue;
    }
    if (!records.ok()) return records.status();
    for (const v1::ExportRecord& record : *records) Take(record);
    complete_ = records->empty();
  }
  return absl::OkStatus();
}

void JobHistory::Begin(const v1::JobHeader& header) {
  auto policy = policy::MakePolicy(policy::FromProto(header.policy()), ShapeOf(header));
  policy_ = policy.ok() ? *std::move(policy) : nullptr;
  names_.assign(header.modules().begin(), header.modules().end());
  const size_t points =
      std::clamp<size_t>(kPointsOfAll / kCurvesOfAModule / std::max<size_t>(1, names_.size()), 16, 1'024);
  modules_.assign(names_.size(), {Curve(points), Curve(points), Curve(points)});
  learning_rate_ = Curve(kPointsOfLearningRate);
  decisions_.clear();
  decision_count_ = 0;
  first_step_ = header.first_step();
}

void JobHistory::Take(const v1::ExportRecord& record) {
  if (record.has_header()) {
    Begin(record.header());
  } else if (record.has_decision()) {
    const v1::Decision& decision = record.decision();
    decisions_.push_back(decision);
    if (decisions_.size() > kDecisions) decisions_.pop_front();
    ++decision_count_;
    // The policy's own come true by themselves.
    if (policy_ != nullptr && policy_->frozen_prefix() != decision.frozen_prefix()) {
      policy_->Adopt(decision.step(), decision.frozen_prefix());
    }
  } else if (record.has_observation()) {
    const v1::Observation& seen = record.observation();
    if (seen.has_learning_rate()) learning_rate_.Add(seen.step(), seen.learning_rate());
    const bool module_is_known = seen.has_module() && static_cast<size_t>(seen.module()) < modules_.size();
    if (seen.has_plasticity() && module_is_known) {
      modules_[static_cast<size_t>(seen.module())].plasticity.Add(seen.step(), seen.plasticity());
    }
    if (policy_ == nullptr) return;
    policy_->Observe(ObservationFromProto(seen));
    if (seen.has_plasticity() || seen.has_gradients()) Sample(seen.step());
  }
}

void JobHistory::Sample(int64_t step) {
  std::optional<policy::PolicyStatus> status;
  for (size_t i = 0; i < modules_.size(); ++i) {
    Module& module = modules_[i];
    if (!module.slope.BeginsPoint(step) && !module.snr.BeginsPoint(step)) continue;
    if (!status) status = policy_->status();
    const policy::ModuleStatus& now = status->modules[i];
    if (now.slope && static_cast<int>(i) == policy_->frozen_prefix()) module.slope.Add(step, *now.slope);
    if (now.snr && static_cast<int>(i) >= policy_->frozen_prefix()) module.snr.Add(step, now.snr->value);
  }
}

}  // namespace egeria::controller
