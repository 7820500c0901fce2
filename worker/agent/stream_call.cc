#include "worker/agent/stream_call.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::worker {

std::shared_ptr<StreamCall> StreamCall::Start(v1::Controller::Stub* stub, std::shared_ptr<Wakeup> wakeup) {
  const std::shared_ptr<StreamCall> call(new StreamCall(std::move(wakeup)));
  call->self_ = call;
  stub->async()->Stream(&call->context_, call.get());
  call->AddHold();  // operations are started from the owner's thread, between reactions
  HandOver(call.get());
  call->StartRead(&call->incoming_);
  call->StartCall();
  return call;
}

StreamCall::~StreamCall() { EGERIA_CHECK(result().has_value()); }

bool StreamCall::CanWrite() {
  if (released_ || half_closed_) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return !writing_ && !reading_ended_;
}

void StreamCall::Write(v1::WorkerMessage message) {
  outgoing_ = std::move(message);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = true;
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
    std::lock_guard<std::mutex> lock(mutex_);
    ended = reading_ended_;
    if (!ended && !has_message_) return std::nullopt;
    has_message_ = false;
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
  std::lock_guard<std::mutex> lock(mutex_);
  return result_;
}

void StreamCall::Release() {
  if (released_) return;
  released_ = true;
  RemoveHold();
}

void StreamCall::OnReadDone(bool ok) {
  TakeOver(this);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    has_message_ = ok;
    reading_ended_ = !ok;
  }
  wakeup_->Notify();
}

void StreamCall::OnWriteDone(bool ok) {
  TakeOver(this);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;  // if it failed, the stream is over, and reading says so
  }
  wakeup_->Notify();
}

void StreamCall::OnWritesDoneDone(bool ok) {}

void StreamCall::OnDone(const grpc::Status& status) {
  TakeOver(this);
  const std::shared_ptr<StreamCall> self = std::move(self_);  // the owner may let go at any moment now
  {
    std::lock_guard<std::mutex> lock(mutex_);
    result_ = rpc::FromGrpc(status);
  }
  wakeup_->Notify();
}

}  // namespace egeria::worker
