#include "controller/service/rank_stream.h"

#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::controller {
namespace {

constexpr absl::Duration kPatienceToOpen = absl::Seconds(30);
constexpr absl::Duration kPatienceForMessage = absl::Minutes(5);
constexpr absl::Duration kPatienceForChunk = absl::Seconds(30);
constexpr absl::Duration kPatienceForUpload = absl::Minutes(10);

}  // namespace

std::shared_ptr<RankStream> RankStream::Start(JobManager* manager, rpc::Peer caller, UploadLimits limits,
                                              UploadBudget* budget, std::function<void()> on_done) {
  std::shared_ptr<RankStream> stream(new RankStream(manager, std::move(caller), limits, budget, std::move(on_done)));
  stream->self_ = stream;
  HandOver(stream.get());
  stream->StartRead(&stream->in_);
  return stream;
}

RankStream::RankStream(JobManager* manager, rpc::Peer caller, UploadLimits limits, UploadBudget* budget,
                       std::function<void()> on_done)
    : manager_(manager), on_done_(std::move(on_done)), session_(manager, std::move(caller), limits, budget) {}

void RankStream::OnReadDone(bool ok) {
  const Reaction reaction(this);
  {
    const MutexLock lock(&mutex_);
    ++reading_;
  }
  absl::Status status;
  RankSession::Reply reply;
  in_.DiscardUnknownFields();
  if (ok) status = session_.Handle(in_, self_, &reply);
  bool read_on = ok && status.ok();
  {
    const MutexLock lock(&mutex_);
    session_id_ = session_.id();
    BookTimes(MonotonicNow());
    directive_due_ |= reply.directive;
    for (v1::UploadResult& result : reply.results) {
      if (results_.size() < kMaxResults) results_.push_back(std::move(result));
    }
    // The worker's half-close ends the stream with OK. Where it was no half-close, gRPC turns this into CANCELLED.
    if (!read_on && !closing_) closing_ = status;
    read_on = read_on && !closing_;
  }
  HandOver(this);
  if (read_on) StartRead(&in_);
  {
    const MutexLock lock(&mutex_);
    --reading_;
  }
  Pump();
}

void RankStream::BookTimes(absl::Time now) {
  last_message_ = now;
  if (in_.has_upload_begin()) upload_began_ = now;
  if (in_.has_upload_begin() || in_.has_upload_chunk()) last_chunk_ = now;
  if (!session_.uploading()) upload_began_ = last_chunk_ = absl::InfiniteFuture();
}

void RankStream::EndIfSilent(absl::Time now) {
  const auto too_late = [](const char* name, const char* what) {
    return NamedError(absl::StatusCode::kDeadlineExceeded, name, what);
  };
  absl::Status status;
  {
    const MutexLock lock(&mutex_);
    if (session_id_.value() == 0 && now - started_ > kPatienceToOpen) {
      status = too_late("SILENT", "no `open` has come");
    } else if (now - last_message_ > kPatienceForMessage) {
      status = too_late("SILENT", "no heartbeat has come for minutes");
    } else if (now - last_chunk_ > kPatienceForChunk || now - upload_began_ > kPatienceForUpload) {
      status = too_late("UPLOAD_STALLED", "an upload has not gone on, or takes too long");
    }
  }
  if (!status.ok()) OnClose(status);
}

void RankStream::OnWriteDone(bool ok) {
  const Reaction reaction(this);
  {
    const MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !closing_) closing_ = absl::CancelledError("the worker has gone");
  }
  Pump();
}

void RankStream::OnDirectiveChanged() {
  {
    const MutexLock lock(&mutex_);
    directive_due_ = true;
  }
  Pump();
}

void RankStream::OnUploadRefused(int64_t upload_id, const absl::Status& reason) {
  {
    const MutexLock lock(&mutex_);
    if (results_.size() >= kMaxResults) return;
    v1::UploadResult& result = results_.emplace_back();
    result.set_upload_id(upload_id);
    result.set_reason(std::string(reason.message().substr(0, 1'024)));
  }
  Pump();
}

void RankStream::OnClose(const absl::Status& status) {
  {
    const MutexLock lock(&mutex_);
    if (!closing_) closing_ = status;
  }
  Pump();
}

void RankStream::OnCancel() {
  const Reaction reaction(this);
  OnClose(absl::CancelledError("the worker has gone"));
}

void RankStream::OnDone() {
  TakeOver(this);
  session_.End();
  const std::shared_ptr<RankStream> self = std::move(self_);
  on_done_();  // the service may be gone after it, and with it the budget of the uploads
}

void RankStream::Pump() {
  std::optional<absl::Status> finish;
  SessionId session;
  {
    const MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (closing_) {
      if (reading_ > 0) return;  // that callback comes here again
      finished_ = true;
      finish = closing_;
    } else if (!results_.empty()) {
      writing_ = true;
      *out_.mutable_upload_result() = std::move(results_.front());
      results_.pop_front();
    } else if (directive_due_ && session_id_.value() != 0) {
      writing_ = true;
      directive_due_ = false;
      session = session_id_;
    } else {
      return;
    }
  }
  if (finish) {
    HandOver(this);
    Finish(rpc::ToGrpc(*finish));
    return;
  }
  if (session.value() != 0) {
    std::optional<v1::Directive> directive = manager_->sessions().DirectiveFor(session);
    if (!directive) {  // the session has just been closed; OnClose() says why
      {
        const MutexLock lock(&mutex_);
        writing_ = false;
      }
      return Pump();
    }
    *out_.mutable_directive() = *std::move(directive);
  }
  HandOver(this);
  StartWrite(&out_);
}

}  // namespace egeria::controller
