#include "worker/agent/register_call.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::worker {

std::shared_ptr<RegisterCall> RegisterCall::Start(v1::Controller::Stub* stub, v1::RegisterJobRequest request,
                                                  std::chrono::seconds patience, std::shared_ptr<Wakeup> wakeup) {
  const std::shared_ptr<RegisterCall> call(new RegisterCall(std::move(request), std::move(wakeup)));
  call->self_ = call;
  call->context_.set_deadline(std::chrono::system_clock::now() + patience);
  stub->async()->RegisterJob(&call->context_, &call->request_, &call->response_, call.get());
  HandOver(call.get());
  call->StartCall();
  return call;
}

RegisterCall::~RegisterCall() { EGERIA_CHECK(result().has_value()); }

std::optional<absl::StatusOr<v1::RegisterJobResponse>> RegisterCall::result() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!status_.has_value()) return std::nullopt;
  if (!status_->ok()) return *status_;
  return response_;
}

void RegisterCall::OnDone(const grpc::Status& status) {
  TakeOver(this);
  const std::shared_ptr<RegisterCall> self = std::move(self_);  // the owner may let go at any moment now
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = rpc::FromGrpc(status);
  }
  wakeup_->Notify();
}

}  // namespace egeria::worker
