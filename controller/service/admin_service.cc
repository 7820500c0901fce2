#include "controller/service/admin_service.h"

#include <utility>
#include <vector>

#include "common/rpc/grpc_status.h"
#include "common/thread/handoff.h"

namespace egeria::controller {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

// Sends records one after the other, and fetches the next ones when the caller has taken these. gRPC owns it until
// OnDone().
class ExportReactor final : public grpc::ServerWriteReactor<v1::ExportRecord> {
 public:
  ExportReactor(const JobManager* manager, JobId job) : manager_(manager), job_(std::move(job)) { Next(); }
  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    if (ok) {
      Next();
    } else {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone"));
    }
  }
  void OnDone() override {
    TakeOver(this);
    delete this;
  }

 private:
  void Next() {
    if (next_ == records_->size()) {
      records_ = manager_->ExportJob(job_, &cursor_);
      next_ = 0;
    }
    if (!records_.ok() || records_->empty()) {
      HandOver(this);
      Finish(rpc::ToGrpc(records_.status()));
    } else {
      const v1::ExportRecord* record = &(*records_)[next_++];
      HandOver(this);
      StartWrite(record);
    }
  }

  JobManager const* const manager_;
  const JobId job_;
  ExportCursor cursor_;
  absl::StatusOr<std::vector<v1::ExportRecord>> records_ = std::vector<v1::ExportRecord>();
  size_t next_ = 0;
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::ListJobs(grpc::CallbackServerContext* context,
                                                 const v1::ListJobsRequest* request, v1::ListJobsResponse* response) {
  *response = manager_->ListJobs();
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::ExportRecord>* AdminService::ExportJob(grpc::CallbackServerContext* context,
                                                                    const v1::ExportJobRequest* request) {
  return new ExportReactor(manager_, JobId(request->job_id()));
}

grpc::ServerUnaryReactor* AdminService::SetFrozenPrefix(grpc::CallbackServerContext* context,
                                                        const v1::SetFrozenPrefixRequest* request,
                                                        v1::SetFrozenPrefixResponse* response) {
  auto plan = manager_->operators().SetFrozenPrefix(JobId(request->job_id()), request->frozen_prefix(),
                                                    request->reason(), request->force());
  if (plan.ok()) response->set_plan_id(plan->value());
  return Answer(context, plan.status());
}

grpc::ServerUnaryReactor* AdminService::SetPaused(grpc::CallbackServerContext* context,
                                                  const v1::SetPausedRequest* request,
                                                  v1::SetPausedResponse* response) {
  return Answer(context, manager_->operators().SetPaused(JobId(request->job_id()), request->paused()));
}

grpc::ServerUnaryReactor* AdminService::SetMode(grpc::CallbackServerContext* context, const v1::SetModeRequest* request,
                                                v1::SetModeResponse* response) {
  return Answer(context, manager_->operators().SetMode(JobId(request->job_id()), request->mode()));
}

}  // namespace egeria::controller
