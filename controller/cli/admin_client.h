#ifndef EGERIA_CONTROLLER_CLI_ADMIN_CLIENT_H_
#define EGERIA_CONTROLLER_CLI_ADMIN_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/rpc/tls_files.h"
#include "egeria/v1/admin.grpc.pb.h"

namespace egeria::cli {

// A blocking client of the Admin service. Every call has a deadline, and its errors are those that
// admin.proto lists, or UNAVAILABLE naming the address where nobody answers. Thread-compatible.
class AdminClient {
 public:
  // `admin` is the controller's address for operators; where it is empty, it is the one beside the Unix socket
  // `controller`.
  // Errors: INVALID_ARGUMENT a bad address, or none; those of rpc::MakeChannel.
  static absl::StatusOr<AdminClient> Connect(const std::string& controller, const std::string& admin = "");

  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  // Calls `visit` with each record.
  absl::Status ExportJob(const std::string& job_id, const std::function<void(const v1::ExportRecord&)>& visit);
  absl::StatusOr<int64_t> SetFrozenPrefix(const std::string& job_id, int prefix, const std::string& reason, bool force);
  absl::Status SetPaused(const std::string& job_id, bool paused);
  absl::Status SetMode(const std::string& job_id, v1::Mode mode);

  // The id of the one job that `text` means: an id, the beginning of one, or the name of a job.
  // Errors: INVALID_ARGUMENT none or several are meant, which the message lists.
  absl::StatusOr<std::string> ResolveJob(const std::string& text);

 private:
  AdminClient(rpc::Address address, rpc::TlsFiles tls, std::unique_ptr<v1::Admin::Stub> stub)
      : address_(std::move(address)), tls_(std::move(tls)), stub_(std::move(stub)) {}
  absl::Status Explain(const grpc::Status& status) const;

  rpc::Address address_;
  rpc::TlsFiles tls_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_ADMIN_CLIENT_H_
