#include "controller/service/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/unix_connection.h"
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
  // Where the caller was not `admitted` it sends nothing but that.
  ExportReactor(const JobManager* manager, JobId job, const absl::Status& admitted)
      : manager_(manager), job_(std::move(job)) {
    if (!admitted.ok()) records_ = admitted;
    Next();
  }
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
    if (records_.ok() && next_ == records_->size()) {
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

bool IsOperator(const rpc::Peer& caller, const std::vector<std::string>& operators) {
  if (caller.uid.has_value()) {
    if (*caller.uid == geteuid() || *caller.uid == 0) return true;
    return std::ranges::any_of(operators, [&](const std::string& user) { return rpc::IsUser(user, *caller.uid); });
  }
  return std::ranges::any_of(
      caller.names, [&](const std::string& name) { return std::ranges::find(operators, name) != operators.end(); });
}

absl::Status AdminService::Admit(const rpc::Peer& caller) const {
  if (!elsewhere_.empty()) {
    return NamedError(absl::StatusCode::kPermissionDenied, "NOT_AN_OPERATOR", "workers call here; operators call at ",
                      elsewhere_);
  }
  if (IsOperator(caller, operators_)) return absl::OkStatus();
  return NamedError(absl::StatusCode::kPermissionDenied, "NOT_AN_OPERATOR",
                    caller.identity.empty() ? "nobody vouches for who you are" : caller.identity,
                    "; operators are the controller's user, root and whoever its option admin.operators names");
}

grpc::ServerUnaryReactor* AdminService::Change(grpc::CallbackServerContext* context, AuditLog::Record record,
                                               const std::function<absl::StatusOr<std::string>()>& change) {
  const rpc::Peer caller = rpc::PeerOf(*context);
  absl::Status status = Admit(caller);
  if (status.ok()) {
    absl::StatusOr<std::string> before = change();
    status = before.status();
    if (before.ok()) record.before = *std::move(before);
  }
  Record(caller, record, status);
  return Answer(context, status);
}

grpc::ServerUnaryReactor* AdminService::ListJobs(grpc::CallbackServerContext* context,
                                                 const v1::ListJobsRequest* request, v1::ListJobsResponse* response) {
  const rpc::Peer caller = rpc::PeerOf(*context);
  const absl::Status admitted = Admit(caller);
  if (admitted.ok()) {
    *response = manager_->ListJobs();
  } else {
    Record(caller, {.action = "list_jobs"}, admitted);
  }
  return Answer(context, admitted);
}

grpc::ServerWriteReactor<v1::ExportRecord>* AdminService::ExportJob(grpc::CallbackServerContext* context,
                                                                    const v1::ExportJobRequest* request) {
  const rpc::Peer caller = rpc::PeerOf(*context);
  const absl::Status admitted = Admit(caller);
  Record(caller, {.action = "export_job", .job = request->job_id()}, admitted);
  return new ExportReactor(manager_, JobId(request->job_id()), admitted);
}

grpc::ServerUnaryReactor* AdminService::SetFrozenPrefix(grpc::CallbackServerContext* context,
                                                        const v1::SetFrozenPrefixRequest* request,
                                                        v1::SetFrozenPrefixResponse* response) {
  AuditLog::Record record = {.action = request->force() ? "force_frozen_prefix" : "set_frozen_prefix",
                             .job = request->job_id(),
                             .after = absl::StrCat(request->frozen_prefix()),
                             .reason = request->reason()};
  return Change(context, std::move(record), [&]() -> absl::StatusOr<std::string> {
    EGERIA_ASSIGN_OR_RETURN(const OperatorDesk::PrefixChange change,
                            manager_->operators().SetFrozenPrefix(JobId(request->job_id()), request->frozen_prefix(),
                                                                  request->reason(), request->force()));
    response->set_plan_id(change.plan.value());
    return absl::StrCat(change.before);
  });
}

grpc::ServerUnaryReactor* AdminService::SetPaused(grpc::CallbackServerContext* context,
                                                  const v1::SetPausedRequest* request,
                                                  v1::SetPausedResponse* response) {
  const auto text = [](bool paused) { return paused ? "true" : "false"; };
  AuditLog::Record record = {.action = "set_paused", .job = request->job_id(), .after = text(request->paused())};
  return Change(context, std::move(record), [&]() -> absl::StatusOr<std::string> {
    EGERIA_ASSIGN_OR_RETURN(const bool before,
                            manager_->operators().SetPaused(JobId(request->job_id()), request->paused()));
    return text(before);
  });
}

grpc::ServerUnaryReactor* AdminService::SetMode(grpc::CallbackServerContext* context, const v1::SetModeRequest* request,
                                                v1::SetModeResponse* response) {
  const auto text = [](v1::Mode mode) {
    return mode == v1::MODE_ACT ? "\"act\"" : mode == v1::MODE_OBSERVE ? "\"observe\"" : "null";
  };
  AuditLog::Record record = {.action = "set_mode", .job = request->job_id(), .after = text(request->mode())};
  return Change(context, std::move(record), [&]() -> absl::StatusOr<std::string> {
    EGERIA_ASSIGN_OR_RETURN(const v1::Mode before,
                            manager_->operators().SetMode(JobId(request->job_id()), request->mode()));
    return text(before);
  });
}

}  // namespace egeria::controller
