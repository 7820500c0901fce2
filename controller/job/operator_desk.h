#ifndef EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_
#define EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread/mutex.h"
#include "controller/job/shared_jobs.h"
#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// Changes that operators make by hand. admin.proto lists the errors of all methods. Thread-safe.
class OperatorDesk {
 public:
  explicit OperatorDesk(SharedJobs* jobs) : jobs_(jobs) {}

  struct PrefixChange {
    PlanId plan;
    int before = 0;  // the prefix that was planned
  };
  // With `force` it freezes even if the policy objects.
  absl::StatusOr<PrefixChange> SetFrozenPrefix(const JobId& id, int frozen_prefix, const std::string& reason,
                                               bool force) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // These return what was there before.
  absl::StatusOr<bool> SetPaused(const JobId& id, bool paused) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  absl::StatusOr<v1::Mode> SetMode(const JobId& id, v1::Mode mode) ABSL_LOCKS_EXCLUDED(jobs_->mutex);

 private:
  SharedJobs* const jobs_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_
