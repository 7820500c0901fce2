#ifndef EGERIA_WORKER_AGENT_CONTROLLER_LINK_H_
#define EGERIA_WORKER_AGENT_CONTROLLER_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "common/rpc/address.h"
#include "common/thread/mutex.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "worker/agent/abandoned_calls.h"
#include "worker/agent/agent.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/stream_session.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// Keeps the controller and the state in touch, from a thread of its own ("egeria-agent"): connects,
// registers, runs a stream until it breaks, waits, and begins again, for ever; or falls silent when the
// controller will never take this job. Says once that the controller is away and once that it is back.
//
// Thread-safe. The channel is made on the thread's first attempt. Stop() is idempotent and takes two seconds
// at most; the destructor stops.
class ControllerLink {
 public:
  // `state` must outlive the link, and notifies `wakeup`.
  ControllerLink(rpc::Address controller, AgentOptions options, int rank, v1::RegisterJobRequest registration,
                 AgentState* state, std::shared_ptr<Wakeup> wakeup);
  ~ControllerLink();

  void Stop(bool finished);

 private:
  void Run();
  // Lives one life of a connection. Returns the cause of its end, which is OK after a stop request.
  absl::Status ConnectOnce();
  // Goes by the generation that the controller has given this start.
  void TakeGeneration(int64_t generation);
  absl::StatusOr<v1::RegisterJobResponse> Register();
  // Returns at `deadline`, or once a stop is requested.
  void SleepUntil(SteadyTime deadline);
  // Logs a failure if it is news, and returns when to try again; empty: never.
  std::optional<std::chrono::nanoseconds> Backoff(const absl::Status& failure);
  void OnAnswer();
  std::optional<StopRequest> stop_request() const;

  // These are constant.
  const rpc::Address controller_;
  const AgentOptions options_;
  AgentState* const state_;
  const std::shared_ptr<Wakeup> wakeup_;

  // Used by the thread only.
  v1::RegisterJobRequest registration_;
  v1::Open open_;
  std::unique_ptr<v1::Controller::Stub> stub_;
  AbandonedCalls abandoned_;
  int64_t next_upload_id_ = 0;
  absl::Status last_logged_;  // the failure that was logged last; OK while the controller answers
  bool answered_before_ = false;
  int attempts_ = 0;  // that have failed before the first answer

  mutable Mutex mutex_;
  std::optional<StopRequest> stop_ ABSL_GUARDED_BY(mutex_);
  std::once_flag joined_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_CONTROLLER_LINK_H_
