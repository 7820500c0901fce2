#include "controller/service/rank_session.h"

#include <string>
#include <utility>

#include "common/base/status.h"

namespace egeria::controller {
namespace {

void Refuse(int64_t upload_id, const absl::Status& reason, RankSession::Reply* reply) {
  v1::UploadResult& result = reply->results.emplace_back();
  result.set_upload_id(upload_id);
  result.set_reason(std::string(reason.message().substr(0, 1'024)));
}

}  // namespace

absl::Status RankSession::Handle(const v1::WorkerMessage& message, const std::weak_ptr<SessionListener>& listener,
                                 Reply* reply) {
  auto bad = [](const char* what) { return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", what); };
  if (message.has_open()) {
    if (id_.value() != 0) return bad("opened twice");
    EGERIA_ASSIGN_OR_RETURN(id_, manager_->sessions().Open(message.open(), listener, caller_));
    reply->directive = true;
    return absl::OkStatus();
  }
  if (id_.value() == 0) return bad("the first message is not `open`");
  switch (message.message_case()) {
    case v1::WorkerMessage::kHeartbeat:
      reply->directive = true;
      return manager_->sessions().Heartbeat(id_, message.heartbeat());
    case v1::WorkerMessage::kUploadBegin: return HandleUploadBegin(message.upload_begin(), reply);
    case v1::WorkerMessage::kUploadChunk: {
      EGERIA_ASSIGN_OR_RETURN(UploadAssembler::Outcome outcome, uploads_.Add(message.upload_chunk()));
      return HandleOutcome(std::move(outcome), reply);
    }
    case v1::WorkerMessage::kReading:
      return HandleTaken(message.reading().upload_id(), manager_->uploads().TakeReading(id_, message.reading()), reply);
    case v1::WorkerMessage::kGradients:
      return HandleTaken(message.gradients().upload_id(), manager_->uploads().TakeGradients(id_, message.gradients()),
                         reply);
    default: return bad("a message of no kind that this version knows");
  }
}

absl::Status RankSession::HandleTaken(int64_t upload_id, const absl::Status& taken, Reply* reply) {
  if (absl::IsAborted(taken)) return taken;  // the session is over
  if (!taken.ok()) Refuse(upload_id, taken, reply);
  return absl::OkStatus();
}

absl::Status RankSession::HandleUploadBegin(const v1::UploadBegin& begin, Reply* reply) {
  EGERIA_ASSIGN_OR_RETURN(UploadAssembler::Outcome outcome, uploads_.Begin(begin));
  if (outcome.complete || !outcome.refused.ok()) return HandleOutcome(std::move(outcome), reply);
  // The bytes of an upload that nobody wants are not taken in at all.
  if (absl::Status wanted = manager_->uploads().Check(id_, begin); !wanted.ok()) {
    if (absl::IsAborted(wanted)) return wanted;  // the session is over
    uploads_.Discard();
    outcome.refused = std::move(wanted);
    return HandleOutcome(std::move(outcome), reply);
  }
  return absl::OkStatus();
}

absl::Status RankSession::HandleOutcome(UploadAssembler::Outcome outcome, Reply* reply) {
  const int64_t upload_id = uploads_.begin().upload_id();
  if (!outcome.refused.ok()) {
    manager_->uploads().Book(id_, uploads_.begin(), outcome.refused);
    Refuse(upload_id, outcome.refused, reply);
  } else if (outcome.complete) {
    return HandleTaken(upload_id,
                       manager_->uploads().Finish(id_, outcome.complete->begin, std::move(outcome.complete->tensors)),
                       reply);
  }
  return absl::OkStatus();
}

void RankSession::End() {
  uploads_.Discard();
  if (id_.value() != 0 && !std::exchange(ended_, true)) manager_->sessions().Close(id_);
}

}  // namespace egeria::controller
