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
  if (bytes > max_bytes_) {  // keep what there is
    ++dropped_full_;
    return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "a sample of ", bytes, " bytes, at most ",
                      max_bytes_);
  }
  while (job.samples.size() >= max_samples_per_job_) DropOldest(&job, dropped);
  while (*bytes_ + bytes > max_bytes_) {
    Job* const largest = LargestBeside(job, bytes);
    if (largest == nullptr) {
      ++dropped_full_;
      return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "a sample of ", bytes, " bytes; ",
                        this->bytes(), " of ", max_bytes_, " are taken");
    }
    DropOldest(largest, dropped);
  }
  job.newest_step = std::max(job.newest_step, sample.step);
  if (job.samples.empty()) job.turn = std::max(job.turn, now_served_);
  sample.lease = ByteLease(bytes_, bytes);
  job.samples.push_back(std::move(sample));
  return absl::OkStatus();
}

// The job whose waiting samples take the most; of two that take the same, not `job`, which wants to add `bytes`. Null
// where that is `job` and none of its samples can go.
SampleQueue::Job* SampleQueue::LargestBeside(Job& job, size_t bytes) {
  Job* largest = &job;
  size_t most = WaitingBytes(job) + bytes;
  for (auto& [id, other] : jobs_) {
    if (&other == &job || WaitingBytes(other) <= most) continue;
    largest = &other;
    most = WaitingBytes(other);
  }
  return largest->samples.empty() ? nullptr : largest;
}

size_t SampleQueue::WaitingBytes(const Job& job) {
  size_t bytes = 0;
  for (const QueuedSample& sample : job.samples) bytes += sample.lease.bytes();
  return bytes;
}

void SampleQueue::DropOldest(Job* job, std::vector<QueuedSample>* dropped) {
  dropped->push_back(std::move(job->samples.front()));
  job->samples.pop_front();
  dropped->back().lease.Release();
  ++dropped_full_;
}

void SampleQueue::Charge(const JobId& job, absl::Duration taken) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.turn += taken;
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
  auto candidate = jobs_.upper_bound(JobId(last_served_));  // jobs with the same turn follow each other
  auto chosen = jobs_.end();
  for (size_t i = 0; i < jobs_.size(); ++i, ++candidate) {
    if (candidate == jobs_.end()) candidate = jobs_.begin();
    Job& job = candidate->second;
    DropLate(&job, dropped);
    if (job.samples.empty()) continue;
    const bool idle = job.traits.shares_cpu && idle_priority_available_;
    if (!gate_open && !IsDue(job.traits, job.newest_step - job.samples.front().step) && !idle) continue;
    if (chosen == jobs_.end() || job.turn < chosen->second.turn) chosen = candidate;
  }
  if (chosen == jobs_.end()) return std::nullopt;
  Job& job = chosen->second;
  Next next{std::move(job.samples.front()), job.traits};
  next.due = IsDue(job.traits, job.newest_step - next.sample.step);
  job.samples.pop_front();
  last_served_ = chosen->first.text();
  now_served_ = std::max(now_served_, job.turn);
  return next;
}

bool SampleQueue::empty() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& entry) { return entry.second.samples.empty(); });
}

}  // namespace egeria::reference
