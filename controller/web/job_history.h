#ifndef EGERIA_CONTROLLER_WEB_JOB_HISTORY_H_
#define EGERIA_CONTROLLER_WEB_JOB_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/policy/policy.h"
#include "controller/job/curve.h"
#include "controller/job/job_manager.h"
#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// The history of a job for a person to look at: curves of a bounded number of points, and the newest decisions. It is
// read from the job's export, each record once, and so costs little to bring up to date. A policy of the same kind sees
// the readings again, so that its slopes and ratios need not be recorded. Thread-compatible.
class JobHistory {
 public:
  struct Module {
    Curve plasticity, slope, snr;
  };
  static constexpr size_t kDecisions = 500;

  explicit JobHistory(JobId job) : job_(std::move(job)) {}

  // Reads what is new, for at most `patience`. Errors: NOT_FOUND [UNKNOWN_JOB].
  absl::Status Update(const JobManager& manager, absl::Duration patience);

  // Whether all has been read that there was.
  bool complete() const { return complete_; }
  const std::vector<std::string>& modules() const { return names_; }
  const std::vector<Module>& of_modules() const { return modules_; }
  const Curve& learning_rate() const { return learning_rate_; }
  const std::deque<v1::Decision>& decisions() const { return decisions_; }
  int64_t decision_count() const { return decision_count_; }
  // The steps that were done when the job began.
  int64_t first_step() const { return first_step_; }

 private:
  void Begin(const v1::JobHeader& header);
  void Take(const v1::ExportRecord& record);
  // Adds what the policy says now to the curves of modules.
  void Sample(int64_t step);

  const JobId job_;
  ExportCursor cursor_;
  bool complete_ = false;
  std::unique_ptr<policy::Policy> policy_;  // null where this version cannot make it
  std::vector<std::string> names_;
  std::vector<Module> modules_;
  Curve learning_rate_{2};  // until the header has come
  std::deque<v1::Decision> decisions_;
  int64_t decision_count_ = 0;
  int64_t first_step_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_JOB_HISTORY_H_
