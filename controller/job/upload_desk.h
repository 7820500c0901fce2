#ifndef EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_
#define EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/tensor/wire_tensor.h"
#include "common/thread/mutex.h"
#include "controller/job/shared_jobs.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// Takes the uploads of the sampling ranks, and the evaluations that the reference engine makes of them. It decides
// whether they are wanted, counts them, brings the standing requests up to date, and gives readings to the policy.
// Thread-safe.
//
// An upload is judged when it begins, so that bytes that nobody wants are not taken in, and again when it is complete,
// since another decision may have been taken meanwhile.
//
// Errors of all methods: ABORTED the session is over. Any other error is the UploadResult's reason: NOT_FOUND
// [UNKNOWN_MODULE]; FAILED_PRECONDITION [STALE_REQUEST] it is not, or no longer, asked for, or another rank is asked;
// INVALID_ARGUMENT with the name of what is wrong with it.
class UploadDesk {
 public:
  explicit UploadDesk(SharedJobs* jobs) : jobs_(jobs) {}

  // OK if an upload that begins is wanted.
  absl::Status Check(SessionId session, const v1::UploadBegin& begin) const ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // Judges a complete upload, gives it to the engine and books it. Further errors: those of the engine.
  absl::Status Finish(SessionId session, const v1::UploadBegin& begin, std::vector<WireTensor> tensors)
      ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // Books an upload of `bytes` that was taken, or that was refused for the reason in `status`. Does nothing where the
  // session is over.
  void Book(SessionId session, const v1::UploadBegin& begin, const absl::Status& status, int64_t bytes = 0)
      ABSL_LOCKS_EXCLUDED(jobs_->mutex);

  // A reading of a module with a local reference. Further errors: UNAVAILABLE [JOURNAL].
  absl::Status TakeReading(SessionId session, const v1::Reading& reading) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // The gradients of a step. Further errors: UNAVAILABLE [JOURNAL].
  absl::Status TakeGradients(SessionId session, const v1::GradientReading& reading) ABSL_LOCKS_EXCLUDED(jobs_->mutex);

  // The engine has evaluated a sample, or could not.
  void TakeEvaluation(const reference::Evaluator::Result& result) ABSL_LOCKS_EXCLUDED(jobs_->mutex);

 private:
  SharedJobs* const jobs_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_UPLOAD_DESK_H_
