#ifndef EGERIA_CONTROLLER_JOB_SESSION_LISTENER_H_
#define EGERIA_CONTROLLER_JOB_SESSION_LISTENER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace egeria::controller {

// Names one stream of one rank; 0 is none.
using SessionId = Id<struct SessionIdTag>;

// A rank's stream as the job manager sees it. Its methods are called without any lock of the manager held, from
// any thread, and must not block.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // What JobManager::DirectiveFor() returns may have changed.
  virtual void OnDirectiveChanged() = 0;
  virtual void OnUploadRefused(int64_t upload_id, const absl::Status& reason) = 0;
  // The session is over; end the stream with this status.
  virtual void OnClose(const absl::Status& status) = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_SESSION_LISTENER_H_
