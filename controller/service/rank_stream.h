#ifndef EGERIA_CONTROLLER_SERVICE_RANK_STREAM_H_
#define EGERIA_CONTROLLER_SERVICE_RANK_STREAM_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/monotonic.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager.h"
#include "controller/service/rank_session.h"
#include "egeria/v1/controller.pb.h"
#include "grpcpp/support/server_callback.h"

namespace egeria::controller {

// One rank's gRPC stream: moves messages between the wire and a RankSession.
//
// A reader that is slow or dead costs nothing but itself: at most one message is being written, and at most kMaxResults
// results of uploads wait. The newest directive is made only when it can be sent.
//
// Thread-safe. It owns itself from Start() until gRPC is done with it.
class RankStream final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>,
                         public SessionListener {
 public:
  static constexpr size_t kMaxResults = 64;

  // Returns a stream that is reading. `on_done` is called once, last.
  static std::shared_ptr<RankStream> Start(JobManager* manager, rpc::Peer caller, UploadLimits limits,
                                           UploadBudget* budget, std::function<void()> on_done);

  // Ends the stream where its worker has been silent for too long: see Stream in controller.proto.
  void EndIfSilent(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // These are the SessionListener's.
  void OnDirectiveChanged() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnUploadRefused(int64_t upload_id, const absl::Status& reason) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnClose(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

  // gRPC calls these.
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override;
  void OnDone() override;

 private:
  RankStream(JobManager* manager, rpc::Peer caller, UploadLimits limits, UploadBudget* budget,
             std::function<void()> on_done);

  // Books that the message in in_ has come.
  void BookTimes(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the next write, or ends the stream, if either is due and possible.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);

  JobManager* const manager_;
  const std::function<void()> on_done_;
  std::shared_ptr<RankStream> self_;

  // These serve the read that is under way; one callback at a time touches them.
  RankSession session_;
  v1::WorkerMessage in_;
  // The write that is under way. Whoever has set writing_ owns it.
  v1::ControllerMessage out_;

  Mutex mutex_;
  SessionId session_id_ ABSL_GUARDED_BY(mutex_);
  int reading_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that may start another read
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool directive_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::UploadResult> results_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  // Monotonic times; those of an upload are infinite while there is none.
  const absl::Time started_ = MonotonicNow();
  absl::Time last_message_ ABSL_GUARDED_BY(mutex_) = started_;
  absl::Time upload_began_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time last_chunk_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_RANK_STREAM_H_
