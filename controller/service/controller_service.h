#ifndef EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_
#define EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/rpc/peer.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager.h"
#include "controller/service/audit_log.h"
#include "controller/service/upload_assembler.h"
#include "egeria/v1/controller.grpc.pb.h"

namespace egeria::controller {

class RankStream;

// The Controller service of controller.proto has a handler for each method, which calls the manager. Thread-safe.
class ControllerService final : public v1::Controller::CallbackService {
 public:
  // `manager` and `audit` must outlive the service and its streams. A null `audit` records nothing.
  ControllerService(JobManager* manager, UploadLimits limits, size_t max_pending_upload_bytes, AuditLog* audit)
      : manager_(manager), limits_(limits), audit_(audit), budget_(max_pending_upload_bytes) {}

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* context, const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse* response) override;
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Stream(
      grpc::CallbackServerContext* context) override;

  // Ends the streams of workers that have been silent for too long. To be called every second or so, with the monotonic
  // time.
  void EndSilentStreams(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no stream is left; call it when the server has shut down.
  void WaitForStreams() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  JobManager* const manager_;
  const UploadLimits limits_;
  AuditLog* const audit_;
  UploadBudget budget_;

  Mutex mutex_;
  CondVar idle_;
  std::map<int64_t, std::weak_ptr<RankStream>> streams_ ABSL_GUARDED_BY(mutex_);  // numbered
  int64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_
