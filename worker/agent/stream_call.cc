#include "worker/agent/stream_call.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::worker {

StreamCall::StreamCall(v1::Controller::Stub* stub, std::shared_ptr<Wakeup> wakeup) : wakeup_(std::move(wakeup)) {
  stub->async()->Stream(&context_, this);
  AddHold();  // operations are started from the owner's thread, between reactions
  HandOver(this);
  StartRead(&incoming_);
  StartCall();
}

StreamCall::~StreamCall() { EGERIA_CHECK(result().has_value()); }

bool StreamCall::CanWrite() {
  if (released_ || half_closed_) return false;
  const MutexLock lock(&shared_->mutex);
  return !shared_->writing && !shared_->reading_ended;
}

void StreamCall::Write(v1::WorkerMessage message) {
  outgoing_ = std::move(message);
  {
    const MutexLock lock(&shared_->mutex);
    shared_->writing = true;
  }
  HandOver(this);
  StartWrite(&outgoing_);
}

void StreamCall::HalfClose() {
  half_closed_ = true;
  StartWritesDone();
}

std::optional<v1::ControllerMessage> StreamCall::Read() {
  bool ended;
  {
    const MutexLock lock(&shared_->mutex);
    ended = shared_->reading_ended;
    if (!ended && !shared_->has_message) return std::nullopt;
    shared_->has_message = false;
  }
  if (ended) {
    Release();
    return std::nullopt;
  }
  std::optional<v1::ControllerMessage> message(std::move(incoming_));
  incoming_.Clear();
  HandOver(this);
  if (!released_) StartRead(&incoming_);
  return message;
}

void StreamCall::Cancel() {
  context_.TryCancel();
  Release();
}

std::optional<absl::Status> StreamCall::result() {
  const MutexLock lock(&shared_->mutex);
  return shared_->result;
}

void StreamCall::Release() {
  if (released_) return;
  released_ = true;
  RemoveHold();
}

void StreamCall::OnReadDone(bool ok) {
  TakeOver(this);
  {
    const MutexLock lock(&shared_->mutex);
    shared_->has_message = ok;
    shared_->reading_ended = !ok;
  }
  wakeup_->Notify();
}

void StreamCall::OnWriteDone(bool ok) {
  TakeOver(this);
  {
    const MutexLock lock(&shared_->mutex);
    shared_->writing = false;  // if it failed, the stream is over, and reading says so
  }
  wakeup_->Notify();
}

void StreamCall::OnWritesDoneDone(bool ok) {}

void StreamCall::OnDone(const grpc::Status& status) {
  TakeOver(this);
  const std::shared_ptr<Shared> shared = shared_;
  const std::shared_ptr<Wakeup> wakeup = wakeup_;
  {
    const MutexLock lock(&shared->mutex);
    shared->result = rpc::FromGrpc(status);
  }
  // The owner may have destroyed this object by now.
  wakeup->Notify();
}

}  // namespace egeria::worker
