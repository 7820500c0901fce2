#include "worker/agent/register_call.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::worker {

RegisterCall::RegisterCall(v1::Controller::Stub* stub, v1::RegisterJobRequest request, std::chrono::seconds patience,
                           std::shared_ptr<Wakeup> wakeup)
    : wakeup_(std::move(wakeup)), request_(std::move(request)) {
  context_.set_deadline(std::chrono::system_clock::now() + patience);
  stub->async()->RegisterJob(&context_, &request_, &response_, this);
  HandOver(this);
  StartCall();
}

RegisterCall::~RegisterCall() { EGERIA_CHECK(result().has_value()); }

std::optional<absl::StatusOr<v1::RegisterJobResponse>> RegisterCall::result() {
  const MutexLock lock(&shared_->mutex);
  if (!shared_->status.has_value()) return std::nullopt;
  if (!shared_->status->ok()) return *shared_->status;
  return response_;
}

void RegisterCall::OnDone(const grpc::Status& status) {
  TakeOver(this);
  const std::shared_ptr<Shared> shared = shared_;
  const std::shared_ptr<Wakeup> wakeup = wakeup_;
  {
    const MutexLock lock(&shared->mutex);
    shared->status = rpc::FromGrpc(status);
  }
  // The owner may have destroyed this object by now.
  wakeup->Notify();
}

}  // namespace egeria::worker
