#ifndef EGERIA_CONTROLLER_SERVICE_RANK_SESSION_H_
#define EGERIA_CONTROLLER_SERVICE_RANK_SESSION_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/peer.h"
#include "controller/job/job_manager.h"
#include "controller/service/upload_assembler.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// The protocol of one rank's stream, free of gRPC: takes the worker's messages one after the other and says what to
// answer. Everything durable or shared belongs to the manager.
//
// Thread-compatible: one message at a time. The destructor closes the session.
class RankSession {
 public:
  struct Reply {
    bool directive = false;                 // answer with the newest directive
    std::vector<v1::UploadResult> results;  // and with these
  };

  // `manager` and `budget` must outlive the session, or its End().
  RankSession(JobManager* manager, rpc::Peer caller, UploadLimits limits, UploadBudget* budget)
      : manager_(manager), caller_(std::move(caller)), uploads_(limits, budget) {}
  ~RankSession() { End(); }
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  // An error ends the stream; see Stream in controller.proto. `listener` is told of changes of the session that no
  // message leads to.
  absl::Status Handle(const v1::WorkerMessage& message, const std::weak_ptr<SessionListener>& listener, Reply* reply);

  // Closes the session. Idempotent; no message may come after it. An upload under way gives its bytes back, and the
  // budget is not touched any more.
  void End();

  // Whether an upload has begun and is not complete.
  bool uploading() const { return uploads_.unfinished(); }
  // The id is 0 before the first message.
  SessionId id() const { return id_; }

 private:
  absl::Status HandleOutcome(UploadAssembler::Outcome outcome, Reply* reply);
  absl::Status HandleTaken(int64_t upload_id, const absl::Status& taken, Reply* reply);
  absl::Status HandleUploadBegin(const v1::UploadBegin& begin, Reply* reply);

  JobManager* const manager_;
  const rpc::Peer caller_;
  UploadAssembler uploads_;
  SessionId id_;
  bool ended_ = false;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_RANK_SESSION_H_
