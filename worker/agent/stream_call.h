#ifndef EGERIA_WORKER_AGENT_STREAM_CALL_H_
#define EGERIA_WORKER_AGENT_STREAM_CALL_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/thread/mutex.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// One call of Controller.Stream, as something that its owner polls: it never blocks, and wakes the owner when
// there is news. At most one message is read ahead, so that a controller that talks too much is held back by
// flow control.
//
// Owned by one thread, which makes every call; gRPC's threads only leave results. The owner keeps polling until
// result() has a value before it destroys it. After Cancel() that is soon, but for one case: where a stopped peer
// leaves a write in a full socket, neither a cancellation nor a keepalive ping gets past it until the peer goes on. See
// AbandonedCalls.
class StreamCall : private grpc::ClientBidiReactor<v1::WorkerMessage, v1::ControllerMessage> {
 public:
  StreamCall(v1::Controller::Stub* stub, std::shared_ptr<Wakeup> wakeup);
  ~StreamCall() override;
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // True when a message may be given to Write().
  bool CanWrite();
  void Write(v1::WorkerMessage message);
  // Says that there are no more writes. Requires CanWrite().
  void HalfClose();

  // The next message, if one has come.
  std::optional<v1::ControllerMessage> Read();

  // Ends the call without waiting for the other side.
  void Cancel();

  // How the call ended, once it has.
  std::optional<absl::Status> result();

 private:
  // Outlives the call: a thread of gRPC may still be leaving a reaction when the owner has seen its result.
  struct Shared {
    Mutex mutex;
    bool has_message ABSL_GUARDED_BY(mutex) = false;
    bool reading_ended ABSL_GUARDED_BY(mutex) = false;
    bool writing ABSL_GUARDED_BY(mutex) = false;
    std::optional<absl::Status> result ABSL_GUARDED_BY(mutex);
  };

  // gRPC's threads call these.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // Lets the call end: no operation will be started any more.
  void Release();

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  const std::shared_ptr<Wakeup> wakeup_;
  grpc::ClientContext context_;

  // Only the owner's thread uses these.
  bool released_ = false;
  bool half_closed_ = false;

  // gRPC owns these while the operation is under way, else the owner does.
  v1::WorkerMessage outgoing_;
  v1::ControllerMessage incoming_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_STREAM_CALL_H_
