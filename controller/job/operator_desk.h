#ifndef EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_
#define EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/job/effects.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// What operators change by hand. Errors of all methods as admin.proto lists them. Thread-compatible.
class OperatorDesk {
 public:
  // All of them must outlive the desk.
  OperatorDesk(const JobManagerOptions* options, JobTable* table, FactWriter* facts)
      : options_(options), table_(table), facts_(facts) {}

  // `force`: though the policy objects.
  absl::StatusOr<PlanId> SetFrozenPrefix(const JobId& id, int frozen_prefix, const std::string& reason, bool force,
                                         Effects& effects);
  absl::Status SetPaused(const JobId& id, bool paused, Effects& effects);
  absl::Status SetMode(const JobId& id, v1::Mode mode, Effects& effects);

 private:
  const JobManagerOptions* const options_;
  JobTable* const table_;
  FactWriter* const facts_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_OPERATOR_DESK_H_
