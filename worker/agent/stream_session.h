#ifndef EGERIA_WORKER_AGENT_STREAM_SESSION_H_
#define EGERIA_WORKER_AGENT_STREAM_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/stream_call.h"
#include "worker/agent/upload_cutter.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// How the agent's thread is to end, set by Stop().
struct StopRequest {
  bool finished = false;  // say in the last heartbeat that training has ended
  SteadyTime deadline;
};

// One stream from its opening to its end: says who it is, sends heartbeats and uploads, takes in directives.
// A heartbeat goes before the next chunk of an upload, so that a large snapshot does not delay it.
// Owned by the agent's thread; used once.
class StreamSession {
 public:
  struct Options {
    v1::Open open;
    std::chrono::nanoseconds heartbeat_interval;
    std::chrono::nanoseconds silence_limit;  // the longest time without an answer
    int64_t* next_upload_id;                 // it rises over all streams
    std::function<std::optional<StopRequest>()> stop_request;
    std::function<void()> on_first_directive;
  };

  StreamSession(v1::Controller::Stub* stub, AgentState* state, std::shared_ptr<Wakeup> wakeup, Options options);

  // Returns how the stream ended: OK after a stop request, else why. It ends at the stop request's deadline, and, with
  // UNAVAILABLE [NO_ANSWER], when nothing has come for the silence limit; half a second later at most.
  absl::Status Run();
  // After Run() has returned, gives the call if it has not ended. It must not be destroyed before it has.
  std::unique_ptr<StreamCall> TakeUnended();

 private:
  void TakeMessages();
  // Ends the call at the deadline of a stop request, or after too long a silence.
  void CancelIfLate(const std::optional<StopRequest>& stop);
  // Gives the stream its next message; false if there is none now. Requires that the stream can take one.
  bool WriteNext(const std::optional<StopRequest>& stop);
  v1::Heartbeat NextHeartbeat(const std::optional<StopRequest>& stop);
  // Fills in the next message of the upload under way or of the next one; false if there is none.
  bool NextOfUpload(v1::WorkerMessage* message);
  SteadyTime NextLook(const std::optional<StopRequest>& stop);

  AgentState* const state_;
  const std::shared_ptr<Wakeup> wakeup_;
  const Options options_;
  std::unique_ptr<StreamCall> call_;

  bool opened_ = false;
  bool answered_ = false;
  bool said_goodbye_ = false;
  std::optional<SteadyTime> abandon_at_;  // set once the call was cancelled
  bool silent_ = false;                   // the call was cancelled for its silence
  SteadyTime next_heartbeat_;
  SteadyTime silent_at_;          // the silence limit, if nothing comes before
  std::optional<Upload> upload_;  // under way
  std::optional<UploadCutter> cutter_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_STREAM_SESSION_H_
