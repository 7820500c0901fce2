#ifndef EGERIA_CONTROLLER_JOB_SESSION_DESK_H_
#define EGERIA_CONTROLLER_JOB_SESSION_DESK_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/job/effects.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// The ranks' streams: begins and ends their sessions, books what a heartbeat tells, and says what a rank is to do.
// Thread-compatible.
class SessionDesk {
 public:
  // All of them must outlive the desk.
  SessionDesk(const JobManagerOptions* options, JobTable* table, FactWriter* facts)
      : options_(options), table_(table), facts_(facts) {}

  // Errors: those of `Open` in controller.proto.
  absl::StatusOr<SessionId> Open(const v1::Open& open, std::weak_ptr<SessionListener> listener, Effects& effects);
  // Harmless for a session that is over.
  void Close(SessionId session, Effects& effects);
  // Errors: ABORTED the session is over; those of ValidateHeartbeat().
  absl::Status Heartbeat(SessionId session, const v1::Heartbeat& heartbeat, Effects& effects);
  // Empty where the session is over.
  std::optional<v1::Directive> Directive(SessionId session) const;

 private:
  // Books the end of the training.
  void Finish(Job& job, int64_t step, Effects& effects);

  const JobManagerOptions* const options_;
  JobTable* const table_;
  FactWriter* const facts_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_SESSION_DESK_H_
