#ifndef EGERIA_CONTROLLER_REFERENCE_SAMPLE_QUEUE_H_
#define EGERIA_CONTROLLER_REFERENCE_SAMPLE_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/wire_tensor.h"
#include "controller/reference/evaluator.h"

namespace egeria::reference {

// Counts bytes against a shared total for as long as it lives. Movable. Thread-compatible; the total is
// atomic.
class ByteLease {
 public:
  ByteLease() = default;
  ByteLease(std::shared_ptr<std::atomic<size_t>> total, size_t bytes) : total_(std::move(total)), bytes_(bytes) {
    *total_ += bytes_;
  }
  ByteLease(ByteLease&& other) noexcept : total_(std::move(other.total_)), bytes_(other.bytes_) {}
  ByteLease& operator=(ByteLease&& other) noexcept {
    Release();
    total_ = std::move(other.total_);
    bytes_ = other.bytes_;
    return *this;
  }
  ~ByteLease() { Release(); }
  void Release() {
    if (total_ != nullptr) *total_ -= bytes_;
    total_.reset();
  }
  size_t bytes() const { return total_ == nullptr ? 0 : bytes_; }

 private:
  std::shared_ptr<std::atomic<size_t>> total_;
  size_t bytes_ = 0;
};

struct QueuedSample : SubmittedSample {
  JobId job;
  std::shared_ptr<void> context = nullptr;  // whatever else the evaluator needs
  ByteLease lease = {};
};

// Samples that wait for the evaluator, and who is next: pure, without a clock or a lock. Thread-compatible.
class SampleQueue {
 public:
  SampleQueue(size_t max_samples_per_job, size_t max_bytes, bool idle_priority_available);

  // Samples of a job that is not set are refused. Setting it anew keeps its samples; removing it drops them.
  void SetJob(const JobId& job, const JobTraits& traits);
  std::vector<QueuedSample> RemoveJob(const JobId& job);

  // Adds a sample of `bytes`, dropping the job's oldest ones where it has too many, and where the bytes do not suffice
  // the oldest ones of the job whose samples take the most. The dropped ones come back, so that the caller may destroy
  // them without its lock. Errors: NOT_FOUND [UNKNOWN_JOB]; RESOURCE_EXHAUSTED [QUEUE_FULL] where dropping does not
  // help.
  absl::Status Push(QueuedSample sample, size_t bytes, std::vector<QueuedSample>* dropped);

  // The job's newest step; never goes back.
  void ReportStep(const JobId& job, int64_t step);
  // True where a sample of this age is to be evaluated at normal priority, or was to be dropped.
  static bool IsDue(const JobTraits& traits, int64_t steps_old);
  static bool IsLate(const JobTraits& traits, int64_t steps_old);

  struct Next {
    QueuedSample sample;
    JobTraits traits;
    bool due = false;  // run it at normal priority
  };
  // Drops what is late, then takes the oldest sample of the job that has had the least time, of those whose sample may
  // run now: at idle priority, because it is due, or because the load gate is open. Time without samples is not saved
  // up, and jobs that have had the same take turns.
  std::optional<Next> Pop(bool gate_open, std::vector<QueuedSample>* dropped);

  // A sample of the job has taken so much time.
  void Charge(const JobId& job, absl::Duration taken);

  bool empty() const;
  size_t bytes() const { return *bytes_; }
  int64_t dropped_full() const { return dropped_full_; }
  int64_t dropped_late() const { return dropped_late_; }

 private:
  struct Job {
    JobTraits traits;
    int64_t newest_step = 0;
    absl::Duration turn;  // rises with the time that it is given; the job with the least is next
    std::deque<QueuedSample> samples;
  };
  static size_t WaitingBytes(const Job& job);
  Job* LargestBeside(Job& job, size_t bytes);
  void DropOldest(Job* job, std::vector<QueuedSample>* dropped);
  void DropLate(Job* job, std::vector<QueuedSample>* dropped);

  const size_t max_samples_per_job_;
  const size_t max_bytes_;
  const bool idle_priority_available_;
  std::map<JobId, Job> jobs_;
  std::string last_served_;    // text of the job's id
  absl::Duration now_served_;  // the turn of the job that was served last
  std::shared_ptr<std::atomic<size_t>> bytes_ = std::make_shared<std::atomic<size_t>>(0);
  int64_t dropped_full_ = 0;
  int64_t dropped_late_ = 0;
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_SAMPLE_QUEUE_H_
