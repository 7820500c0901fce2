#include "tests/support/fake_evaluator.h"

#include <cmath>
#include <cstring>

#include "common/base/status.h"

namespace egeria::testing {
namespace {

bool IsFinite(const WireTensor& tensor) {
  for (size_t at = 0; at + sizeof(float) <= tensor.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, tensor.data() + at, sizeof(value));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

std::vector<absl::Status> FakeEvaluator::SetJob(const JobId& job,
                                                const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                                const reference::JobTraits& traits) {
  const MutexLock lock(&mutex_);
  ++set_job_calls_;
  Job& entry = jobs_[job];
  entry = Job();
  entry.traits = traits;
  std::vector<absl::Status> statuses;
  for (const auto& module : modules) {
    statuses.push_back(module ? graph::Validate(*module)
                              : NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRAPH", "none"));
    entry.usable.push_back(statuses.back().ok());
  }
  return statuses;
}

void FakeEvaluator::RemoveJob(const JobId& job) {
  const MutexLock lock(&mutex_);
  jobs_.erase(job);
}

absl::Status FakeEvaluator::SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                                           std::vector<WireTensor> weights) {
  const MutexLock lock(&mutex_);
  auto found = jobs_.find(job);
  const auto index = static_cast<size_t>(module.value());
  if (found == jobs_.end() || module.value() < 0 || index >= found->second.usable.size()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "no such job or module");
  }
  if (weights.empty()) return NamedError(absl::StatusCode::kInvalidArgument, "MISSING_WEIGHT", "no weights at all");
  found->second.references.insert(static_cast<int>(index));
  ++counters_.snapshots;
  return absl::OkStatus();
}

absl::Status FakeEvaluator::SubmitSample(const JobId& job, reference::SubmittedSample sample) {
  {
    const MutexLock lock(&mutex_);
    auto found = jobs_.find(job);
    if (found == jobs_.end()) return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "no such job");
    for (int64_t i = sample.first_module.value(); i <= sample.module.value(); ++i) {
      if (found->second.references.count(static_cast<int>(i)) == 0) {
        return NamedError(absl::StatusCode::kFailedPrecondition, "NO_REFERENCE", "module ", i);
      }
    }
    if (sample.tensors.empty() || !IsFinite(sample.tensors.back())) {
      return NamedError(absl::StatusCode::kInvalidArgument, "SAMPLE_NOT_FINITE", "the Gram matrix");
    }
    ++counters_.evaluated;
  }
  Result result;
  result.job = job;
  result.module = sample.module;
  result.step = sample.step;
  result.request_version = sample.request_version;
  result.tag = sample.tag;
  const auto plasticity = script_(job, static_cast<int>(sample.module.value()), sample.step);
  if (plasticity.ok()) {
    result.evaluation = reference::Evaluation{*plasticity, "fake", absl::Milliseconds(1)};
  } else {
    result.evaluation = plasticity.status();
    result.graph_refused = absl::IsDeadlineExceeded(plasticity.status());
  }
  on_result_(result);
  return absl::OkStatus();
}

void FakeEvaluator::ReportStep(const JobId& job, int64_t step) {
  const MutexLock lock(&mutex_);
  if (auto found = jobs_.find(job); found != jobs_.end()) found->second.step = step;
}

reference::EvaluatorCounters FakeEvaluator::counters() const {
  const MutexLock lock(&mutex_);
  return counters_;
}

void FakeEvaluator::Stop() {
  const MutexLock lock(&mutex_);
  stopped_ = true;
}

std::optional<reference::JobTraits> FakeEvaluator::traits(const JobId& job) const {
  const MutexLock lock(&mutex_);
  auto found = jobs_.find(job);
  return found == jobs_.end() ? std::nullopt : std::optional(found->second.traits);
}

int64_t FakeEvaluator::step(const JobId& job) const {
  const MutexLock lock(&mutex_);
  auto found = jobs_.find(job);
  return found == jobs_.end() ? -1 : found->second.step;
}

int FakeEvaluator::set_job_calls() const {
  const MutexLock lock(&mutex_);
  return set_job_calls_;
}

bool FakeEvaluator::stopped() const {
  const MutexLock lock(&mutex_);
  return stopped_;
}

}  // namespace egeria::testing
