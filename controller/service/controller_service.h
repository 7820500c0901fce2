#ifndef EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_
#define EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_

#include "absl/base/thread_annotations.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager.h"
#include "controller/service/upload_assembler.h"
#include "egeria/v1/controller.grpc.pb.h"

namespace egeria::controller {

// The Controller service of controller.proto has a handler for each method, which calls the manager. Thread-safe.
class ControllerService final : public v1::Controller::CallbackService {
 public:
  // `manager` must outlive the service and its streams.
  ControllerService(JobManager* manager, UploadLimits limits, size_t max_pending_upload_bytes)
      : manager_(manager), limits_(limits), budget_(max_pending_upload_bytes) {}

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* context, const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse* response) override;
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Stream(
      grpc::CallbackServerContext* context) override;

  // Waits until no stream is left; call it when the server has shut down.
  void WaitForStreams() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  JobManager* const manager_;
  const UploadLimits limits_;
  UploadBudget budget_;

  Mutex mutex_;
  CondVar idle_;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVICE_H_
