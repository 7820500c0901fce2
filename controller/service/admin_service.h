#ifndef EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_
#define EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_

#include "controller/job/job_manager.h"
#include "egeria/v1/admin.grpc.pb.h"

namespace egeria::controller {

// The Admin service of admin.proto has a handler for each method, which calls the manager. Thread-safe.
class AdminService final : public v1::Admin::CallbackService {
 public:
  // `manager` must outlive the service and its calls.
  explicit AdminService(JobManager* manager) : manager_(manager) {}

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::ExportRecord>* ExportJob(grpc::CallbackServerContext* context,
                                                        const v1::ExportJobRequest* request) override;
  grpc::ServerUnaryReactor* SetFrozenPrefix(grpc::CallbackServerContext* context,
                                            const v1::SetFrozenPrefixRequest* request,
                                            v1::SetFrozenPrefixResponse* response) override;
  grpc::ServerUnaryReactor* SetPaused(grpc::CallbackServerContext* context, const v1::SetPausedRequest* request,
                                      v1::SetPausedResponse* response) override;
  grpc::ServerUnaryReactor* SetMode(grpc::CallbackServerContext* context, const v1::SetModeRequest* request,
                                    v1::SetModeResponse* response) override;

 private:
  JobManager* const manager_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_
