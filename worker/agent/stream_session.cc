#include "worker/agent/stream_session.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "worker/agent/abandoned_calls.h"

namespace egeria::worker {

StreamSession::StreamSession(v1::Controller::Stub* stub, AgentState* state, std::shared_ptr<Wakeup> wakeup,
                             Options options)
    : state_(state),
      wakeup_(wakeup),
      options_(std::move(options)),
      call_(std::make_unique<StreamCall>(stub, std::move(wakeup))) {}

absl::Status StreamSession::Run() {
  state_->BeginStream();
  silent_at_ = std::chrono::steady_clock::now() + options_.silence_limit;
  for (;;) {
    TakeMessages();
    if (call_->result().has_value()) break;
    const std::optional<StopRequest> stop = options_.stop_request();
    CancelIfLate(stop);
    if (abandon_at_.has_value() && std::chrono::steady_clock::now() >= *abandon_at_) break;
    while (call_->CanWrite() && WriteNext(stop)) {
    }
    wakeup_->WaitUntil(NextLook(stop));
  }
  cutter_.reset();
  state_->EndStream(std::move(upload_));
  const std::optional<absl::Status> result = call_->result();
  if (silent_ && !(result.has_value() && result->ok())) {
    return NamedError(absl::StatusCode::kUnavailable, "NO_ANSWER", "connected, but without an answer for ",
                      std::chrono::duration_cast<std::chrono::milliseconds>(options_.silence_limit).count(), " ms");
  }
  return result.value_or(absl::CancelledError("the stream was left, as it did not end"));
}

std::unique_ptr<StreamCall> StreamSession::TakeUnended() {
  return call_->result().has_value() ? nullptr : std::move(call_);
}

void StreamSession::CancelIfLate(const std::optional<StopRequest>& stop) {
  if (abandon_at_.has_value()) return;
  const SteadyTime now = std::chrono::steady_clock::now();
  silent_ = now >= silent_at_;
  if (!silent_ && !(stop.has_value() && now >= stop->deadline)) return;
  call_->Cancel();
  abandon_at_ = now + kCancelTime;
}

void StreamSession::TakeMessages() {
  while (std::optional<v1::ControllerMessage> message = call_->Read()) {
    silent_at_ = std::chrono::steady_clock::now() + options_.silence_limit;
    if (message->has_directive()) {
      state_->Apply(message->directive());
      if (!std::exchange(answered_, true)) options_.on_first_directive();
    } else if (message->has_upload_result()) {
      state_->UploadRefused(message->upload_result());
    }
  }
}

bool StreamSession::WriteNext(const std::optional<StopRequest>& stop) {
  v1::WorkerMessage message;
  if (!opened_) {
    opened_ = true;
    *message.mutable_open() = options_.open;
  } else if (stop.has_value() && said_goodbye_) {
    call_->HalfClose();
    return false;
  } else if (stop.has_value() || state_->HeartbeatIsUrgent() || std::chrono::steady_clock::now() >= next_heartbeat_) {
    *message.mutable_heartbeat() = NextHeartbeat(stop);
  } else if (!NextOfUpload(&message)) {
    return false;
  }
  call_->Write(std::move(message));
  return true;
}

v1::Heartbeat StreamSession::NextHeartbeat(const std::optional<StopRequest>& stop) {
  v1::Heartbeat heartbeat = state_->TakeHeartbeat();
  next_heartbeat_ = std::chrono::steady_clock::now() + options_.heartbeat_interval;
  if (stop.has_value() && !state_->HeartbeatIsUrgent()) {  // otherwise another one brings the rest of the losses
    heartbeat.set_finished(stop->finished);
    said_goodbye_ = true;
  }
  return heartbeat;
}

bool StreamSession::NextOfUpload(v1::WorkerMessage* message) {
  for (;;) {
    if (!upload_.has_value()) {
      upload_ = state_->TakeUpload();
      if (!upload_.has_value()) return false;
      cutter_.emplace(&*upload_, ++*options_.next_upload_id);
    }
    if (cutter_->Next(message)) return true;
    state_->UploadSent(*upload_);
    cutter_.reset();
    upload_.reset();
  }
}

SteadyTime StreamSession::NextLook(const std::optional<StopRequest>& stop) {
  // The end of a write or of the call wakes us; this bound is only for safety.
  SteadyTime look = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  if (abandon_at_.has_value()) return std::min(look, *abandon_at_);
  look = std::min(look, silent_at_);
  if (stop.has_value()) look = std::min(look, stop->deadline);
  if (call_->CanWrite()) look = std::min(look, next_heartbeat_);
  return look;
}

}  // namespace egeria::worker
