#ifndef EGERIA_WORKER_AGENT_REGISTER_CALL_H_
#define EGERIA_WORKER_AGENT_REGISTER_CALL_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// One call of Controller.RegisterJob, polled by its owner like a StreamCall, which it resembles in its thread
// rule: owned by one thread, which may let go of it before it has ended.
class RegisterCall : private grpc::ClientUnaryReactor {
 public:
  // Ends after `patience`, unless the peer is stopped; see StreamCall.
  static std::shared_ptr<RegisterCall> Start(v1::Controller::Stub* stub, v1::RegisterJobRequest request,
                                             std::chrono::seconds patience, std::shared_ptr<Wakeup> wakeup);
  ~RegisterCall() override;
  RegisterCall(const RegisterCall&) = delete;
  RegisterCall& operator=(const RegisterCall&) = delete;

  void Cancel() { context_.TryCancel(); }
  std::optional<absl::StatusOr<v1::RegisterJobResponse>> result();

 private:
  RegisterCall(v1::RegisterJobRequest request, std::shared_ptr<Wakeup> wakeup)
      : wakeup_(std::move(wakeup)), request_(std::move(request)) {}
  void OnDone(const grpc::Status& status) override;  // on a thread of gRPC

  std::mutex mutex_;
  std::optional<absl::Status> status_;  // guarded by mutex_

  const std::shared_ptr<Wakeup> wakeup_;
  std::shared_ptr<RegisterCall> self_;  // until gRPC is done
  grpc::ClientContext context_;
  const v1::RegisterJobRequest request_;
  v1::RegisterJobResponse response_;  // of gRPC until the call is done
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_REGISTER_CALL_H_
