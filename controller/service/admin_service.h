#ifndef EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_
#define EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/peer.h"
#include "controller/job/job_manager.h"
#include "controller/service/audit_log.h"
#include "egeria/v1/admin.grpc.pb.h"

namespace egeria::controller {

// True for the controller's own user and root, and for whoever `operators` names: users by name or number, certificates
// by one of their names.
bool IsOperator(const rpc::Peer& caller, const std::vector<std::string>& operators);

// The Admin service of admin.proto has a handler for each method, which calls the manager for operators and refuses
// everybody else. Thread-safe.
class AdminService final : public v1::Admin::CallbackService {
 public:
  // `manager` and `audit` must outlive the service and its calls. A null `audit` records nothing. Where `elsewhere` is
  // not empty it says where operators call, and nobody is served here.
  AdminService(JobManager* manager, std::vector<std::string> operators, AuditLog* audit, std::string elsewhere = "")
      : manager_(manager), operators_(std::move(operators)), audit_(audit), elsewhere_(std::move(elsewhere)) {}

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
  // Errors: PERMISSION_DENIED [NOT_AN_OPERATOR].
  absl::Status Admit(const rpc::Peer& caller) const;
  // Makes a change for an operator, and records it; `change` returns what was there before, as JSON.
  grpc::ServerUnaryReactor* Change(grpc::CallbackServerContext* context, AuditLog::Record record,
                                   const std::function<absl::StatusOr<std::string>()>& change);
  void Record(const rpc::Peer& caller, const AuditLog::Record& record, const absl::Status& outcome) const {
    if (audit_ != nullptr) audit_->Write(caller, record, outcome);
  }

  JobManager* const manager_;
  const std::vector<std::string> operators_;
  AuditLog* const audit_;
  const std::string elsewhere_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_ADMIN_SERVICE_H_
