#ifndef EGERIA_CONTROLLER_JOB_SESSION_DESK_H_
#define EGERIA_CONTROLLER_JOB_SESSION_DESK_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread/mutex.h"
#include "controller/job/ownership.h"
#include "controller/job/shared_jobs.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// The ranks' streams: begins and ends their sessions, books what a heartbeat tells, and says what a rank is to do.
// Thread-safe.
class SessionDesk {
 public:
  explicit SessionDesk(SharedJobs* jobs) : jobs_(jobs) {}

  // Errors: those of Stream in controller.proto that an `open` can lead to.
  absl::StatusOr<SessionId> Open(const v1::Open& open, std::weak_ptr<SessionListener> listener,
                                 const rpc::Peer& caller = ThisProcess()) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // The stream has ended, for whatever reason. Harmless for a session that is over.
  void Close(SessionId session) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // Errors: ABORTED the session is over; those of ValidateHeartbeat().
  absl::Status Heartbeat(SessionId session, const v1::Heartbeat& heartbeat) ABSL_LOCKS_EXCLUDED(jobs_->mutex);
  // The newest directive for this rank; empty where the session is over.
  std::optional<v1::Directive> DirectiveFor(SessionId session) const ABSL_LOCKS_EXCLUDED(jobs_->mutex);

 private:
  // Books the end of the training.
  void Finish(Job& job, int64_t step, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_->mutex);

  SharedJobs* const jobs_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_SESSION_DESK_H_
