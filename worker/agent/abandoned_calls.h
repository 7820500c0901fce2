#ifndef EGERIA_WORKER_AGENT_ABANDONED_CALLS_H_
#define EGERIA_WORKER_AGENT_ABANDONED_CALLS_H_

#include <chrono>
#include <memory>
#include <vector>

#include "worker/agent/register_call.h"
#include "worker/agent/stream_call.h"

namespace egeria::worker {

// How long a cancelled call may take to end before it is abandoned.
constexpr std::chrono::milliseconds kCancelTime(500);

// Calls that did not end when they were cancelled, kept until they have. A call that has not ended when this object
// does is leaked: gRPC may still come back to it. Owned by the agent's thread.
class AbandonedCalls {
 public:
  ~AbandonedCalls();
  void Keep(std::unique_ptr<StreamCall> call) { streams_.push_back(std::move(call)); }
  void Keep(std::unique_ptr<RegisterCall> call) { registrations_.push_back(std::move(call)); }
  // Destroys those that have ended.
  void Sweep();

 private:
  std::vector<std::unique_ptr<StreamCall>> streams_;
  std::vector<std::unique_ptr<RegisterCall>> registrations_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_ABANDONED_CALLS_H_
