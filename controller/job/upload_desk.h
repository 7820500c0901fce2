#ifndef EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_
#define EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/job/effects.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// What the sampling ranks send, and what the reference engine makes of it: counts it, brings the standing requests up
// to date, and gives readings to the policy. upload_judge.h decides what is wanted. Thread-compatible.
class UploadDesk {
 public:
  // An upload that is wanted.
  struct Accepted {
    JobId job;
    bool for_evaluator = true;  // false: the worker keeps the snapshot itself; that it has one is all there is to know
  };

  // All of them must outlive the desk.
  UploadDesk(const JobManagerOptions* options, JobTable* table, FactWriter* facts)
      : options_(options), table_(table), facts_(facts) {}

  // Whether an upload that begins is wanted. Errors: ABORTED the session is over; those of JudgeUpload().
  absl::Status Check(SessionId session, const v1::UploadBegin& begin) const;
  // Whether a complete upload is wanted. One that is not is booked as refused. Errors as Check().
  absl::StatusOr<Accepted> Accept(SessionId session, const v1::UploadBegin& begin, Effects& effects);
  // Books an upload of `bytes` that the engine has taken, or that was refused for the reason in `status`. Does nothing
  // where the session is over.
  void Book(SessionId session, const v1::UploadBegin& begin, int64_t bytes, const absl::Status& status,
            Effects& effects);

  // Errors of both: ABORTED the session is over; those of the judge; UNAVAILABLE [JOURNAL].
  absl::Status TakeReading(SessionId session, const v1::Reading& reading, Effects& effects);
  absl::Status TakeGradients(SessionId session, const v1::GradientReading& reading, Effects& effects);

  // The engine has evaluated a sample, or could not.
  void TakeEvaluation(const reference::Evaluator::Result& result, Effects& effects);

 private:
  const JobManagerOptions* const options_;
  JobTable* const table_;
  FactWriter* const facts_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_
