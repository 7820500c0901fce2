#ifndef EGERIA_WORKER_AGENT_REGISTER_CALL_H_
#define EGERIA_WORKER_AGENT_REGISTER_CALL_H_

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/thread/mutex.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// One call of Controller.RegisterJob, polled by its owner like a StreamCall, which it resembles in its thread
// rule: owned by one thread, which keeps polling until result() has a value before it destroys it.
class RegisterCall : private grpc::ClientUnaryReactor {
 public:
  // Ends after `patience`, unless a stopped peer stands in the way.
  RegisterCall(v1::Controller::Stub* stub, v1::RegisterJobRequest request, std::chrono::seconds patience,
               std::shared_ptr<Wakeup> wakeup);
  ~RegisterCall() override;
  RegisterCall(const RegisterCall&) = delete;
  RegisterCall& operator=(const RegisterCall&) = delete;

  void Cancel() { context_.TryCancel(); }
  std::optional<absl::StatusOr<v1::RegisterJobResponse>> result();

 private:
  // Outlives the call: a thread of gRPC may still be leaving OnDone when the owner has seen the result.
  struct Shared {
    Mutex mutex;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
  };

  // A thread of gRPC calls it.
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  const std::shared_ptr<Wakeup> wakeup_;
  const v1::RegisterJobRequest request_;
  grpc::ClientContext context_;
  v1::RegisterJobResponse response_;  // belongs to gRPC until the call is done
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_REGISTER_CALL_H_
