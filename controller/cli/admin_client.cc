#include "controller/cli/admin_client.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_status.h"

namespace egeria::cli {
namespace {

void SetDeadline(grpc::ClientContext* context, std::chrono::seconds allowed = std::chrono::seconds(10)) {
  context->set_deadline(std::chrono::system_clock::now() + allowed);
}

absl::StatusOr<rpc::Address> AddressOf(const std::string& controller, const std::string& admin) {
  if (!admin.empty()) return rpc::ParseAddress(admin);
  if (controller.empty()) {
    return absl::InvalidArgumentError(
        "which controller? Give --controller unix:/path, or set EGERIA_CONTROLLER; or give its address for operators "
        "by --admin or EGERIA_ADMIN");
  }
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address parsed, rpc::ParseAddress(controller));
  if (parsed.is_unix()) return rpc::AdminAddress(parsed);
  return absl::InvalidArgumentError(absl::StrCat("workers call the controller at ", controller,
                                                 "; where do operators? Give --admin unix:/path or host:port, or set "
                                                 "EGERIA_ADMIN, as its option admin.listen says"));
}

absl::Status NobodyAnswers(const rpc::Address& address, const absl::Status& why) {
  return absl::UnavailableError(
      absl::StrCat("no controller answers at ", address.ToString(), " (", std::string(why.message()), ")"));
}

}  // namespace

absl::StatusOr<AdminClient> AdminClient::Connect(const std::string& controller, const std::string& admin) {
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, AddressOf(controller, admin));
  const rpc::TlsFiles tls = rpc::TlsFilesFromEnvironment();
  const auto channel = rpc::MakeChannel(address, tls);
  if (absl::IsUnavailable(channel.status())) return NobodyAnswers(address, channel.status());
  EGERIA_RETURN_IF_ERROR(channel.status());
  return AdminClient(address, tls, v1::Admin::NewStub(*channel));
}

absl::Status AdminClient::Explain(const grpc::Status& status) const {
  const absl::Status error = rpc::FromGrpc(status);
  if (!absl::IsUnavailable(error) || !rpc::ErrorName(error).empty()) return error;
  return NobodyAnswers(address_, rpc::ExplainRefusal(error, address_, tls_));
}

absl::StatusOr<v1::ListJobsResponse> AdminClient::ListJobs() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ListJobsResponse response;
  EGERIA_RETURN_IF_ERROR(Explain(stub_->ListJobs(&context, {}, &response)));
  return response;
}

absl::Status AdminClient::ExportJob(const std::string& job_id,
                                    const std::function<void(const v1::ExportRecord&)>& visit) {
  grpc::ClientContext context;
  SetDeadline(&context, std::chrono::minutes(5));
  v1::ExportJobRequest request;
  request.set_job_id(job_id);
  auto reader = stub_->ExportJob(&context, request);
  v1::ExportRecord record;
  while (reader->Read(&record)) visit(record);
  return Explain(reader->Finish());
}

absl::StatusOr<int64_t> AdminClient::SetFrozenPrefix(const std::string& job_id, int prefix, const std::string& reason,
                                                     bool force) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::SetFrozenPrefixRequest request;
  v1::SetFrozenPrefixResponse response;
  request.set_job_id(job_id);
  request.set_frozen_prefix(prefix);
  request.set_reason(reason);
  request.set_force(force);
  EGERIA_RETURN_IF_ERROR(Explain(stub_->SetFrozenPrefix(&context, request, &response)));
  return response.plan_id();
}

absl::Status AdminClient::SetPaused(const std::string& job_id, bool paused) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::SetPausedRequest request;
  v1::SetPausedResponse response;
  request.set_job_id(job_id);
  request.set_paused(paused);
  return Explain(stub_->SetPaused(&context, request, &response));
}

absl::Status AdminClient::SetMode(const std::string& job_id, v1::Mode mode) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::SetModeRequest request;
  v1::SetModeResponse response;
  request.set_job_id(job_id);
  request.set_mode(mode);
  return Explain(stub_->SetMode(&context, request, &response));
}

absl::StatusOr<std::string> AdminClient::ResolveJob(const std::string& text) {
  if (JobId(text).IsValid()) return text;
  EGERIA_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, ListJobs());
  std::vector<const v1::JobSummary*> live, all;
  for (const v1::JobSummary& job : response.jobs()) {
    const bool meant = job.training_job() == text || (text.size() >= 4 && absl::StartsWith(job.job_id(), text));
    if (!meant) continue;
    all.push_back(&job);
    if (job.phase() != v1::JOB_PHASE_FINISHED) live.push_back(&job);
  }
  if (live.size() == 1) return live[0]->job_id();
  if (live.empty() && all.size() == 1) return all[0]->job_id();
  if (all.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no job is called '", text, "'; `egeria list` shows them"));
  }
  std::string message = absl::StrCat("several jobs are called '", text, "'; give the id of one:");
  for (const v1::JobSummary* job : live.empty() ? all : live) absl::StrAppend(&message, " ", job->job_id());
  return absl::InvalidArgumentError(message);
}

}  // namespace egeria::cli
