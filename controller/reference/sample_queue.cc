#include "controller/reference/sample_queue.h"

#include <algorithm>

#include "common/base/status.h"

namespace egeria::reference {

SampleQueue::SampleQueue(size_t max_samples_per_job, size_t max_bytes, bool idle_priority_available)
    : max_samples_per_job_(std::max<size_t>(max_samples_per_job, 1)),
      max_bytes_(max_bytes),
      idle_priority_available_(idle_priority_available) {}

void SampleQueue::SetJob(const JobId& job, const JobTraits& traits) { jobs_[job].traits = traits; }

std::vector<QueuedSample> SampleQueue::RemoveJob(const JobId& job) {
  std::vector<QueuedSample> removed;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return removed;
  for (QueuedSample& sample : found->second.samples) removed.push_back(std::move(sample));
  jobs_.erase(found);
  return removed;
}

absl::Status SampleQueue::Push(QueuedSample sample, size_t bytes, std::vector<QueuedSample>* dropped) {
  const auto found = jobs_.find(sample.job);
  if (found == jobs_.end()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", sample.job.text());
  }
  Job& job = found->second;
  size_t freed = 0;  // by what is to be dropped
  size_t drop = 0;
  const auto fits = [&] {
    return job.samples.size() - drop < max_samples_per_job_ && *bytes_ - freed + bytes <= max_bytes_;
  };
  while (drop < job.samples.size() && !fits()) freed += job.samples[drop++].lease.bytes();
  if (!fits()) {  // keep what there is
    ++dropped_full_;
    return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "a sample of ", bytes, " bytes; ",
                      this->bytes(), " of ", max_bytes_, " are taken");
  }
  for (size_t i = 0; i < drop; ++i) {
    dropped->push_back(std::move(job.samples.front()));
    job.samples.pop_front();
    dropped->back().lease.Release();
    ++dropped_full_;
  }
  job.newest_step = std::max(job.newest_step, sample.step);
  sample.lease = Lease(bytes);
  job.samples.push_back(std::move(sample));
  return absl::OkStatus();
}

void SampleQueue::ReportStep(const JobId& job, int64_t step) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.newest_step = std::max(found->second.newest_step, step);
}

bool SampleQueue::IsDue(const JobTraits& traits, int64_t steps_old) {
  return traits.shares_cpu && traits.deadline_steps > 0 && steps_old >= traits.deadline_steps;
}

bool SampleQueue::IsLate(const JobTraits& traits, int64_t steps_old) {
  return traits.deadline_steps > 0 && steps_old / 2 >= traits.deadline_steps;
}

void SampleQueue::DropLate(Job* job, std::vector<QueuedSample>* dropped) {
  while (!job->samples.empty() && IsLate(job->traits, job->newest_step - job->samples.front().step)) {
    dropped->push_back(std::move(job->samples.front()));
    job->samples.pop_front();
    dropped->back().lease.Release();
    ++dropped_late_;
  }
}

std::optional<SampleQueue::Next> SampleQueue::Pop(bool gate_open, std::vector<QueuedSample>* dropped) {
  auto turn = jobs_.upper_bound(JobId(last_served_));
  for (size_t i = 0; i < jobs_.size(); ++i, ++turn) {
    if (turn == jobs_.end()) turn = jobs_.begin();
    Job& job = turn->second;
    DropLate(&job, dropped);
    if (job.samples.empty()) continue;
    const bool due = IsDue(job.traits, job.newest_step - job.samples.front().step);
    const bool idle = job.traits.shares_cpu && idle_priority_available_;
    if (!gate_open && !due && !idle) continue;
    Next next{std::move(job.samples.front()), job.traits, due};
    job.samples.pop_front();
    last_served_ = turn->first.text();
    return next;
  }
  return std::nullopt;
}

bool SampleQueue::empty() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& entry) { return entry.second.samples.empty(); });
}

}  // namespace egeria::reference
