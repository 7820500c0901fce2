#ifndef EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_
#define EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"
#include "common/rpc/bound_server.h"
#include "common/rpc/credentials.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager.h"
#include "controller/service/admin_service.h"
#include "controller/service/audit_log.h"
#include "controller/service/controller_service.h"

namespace egeria::controller {

// The controller's gRPC servers: one for the workers, on one or more addresses, and one for operators on an address of
// its own.
//
// Thread-safe. Stop() is idempotent; the destructor calls it.
//
// Example:
//   EGERIA_ASSIGN_OR_RETURN(auto server, ControllerServer::Start({.listen = {address}}, manager.get()));
//   ... server->addresses() ...
//   manager->Stop();   // ends the streams with a reason
//   server->Stop();
class ControllerServer {
 public:
  struct Options {
    std::vector<rpc::Address> listen;          // at least one; port 0 takes any free one
    mode_t socket_mode = 0600;                 // permissions of the workers' Unix sockets
    std::optional<rpc::Address> admin_listen;  // where operators call; TCP needs `tls`. Empty: nowhere
    std::vector<std::string> operators;        // see IsOperator()
    AuditLog* audit = nullptr;                 // must outlive the server; null: nothing is recorded
    rpc::TlsFiles tls;
    bool insecure_allowed = false;  // whether addresses other than loopback need no TLS
    UploadLimits uploads;
    size_t max_pending_upload_bytes = size_t{2} << 30;  // unfinished uploads of all streams together
  };

  // `manager` must outlive the server.
  // Errors: those of rpc::BoundServer::Start().
  static absl::StatusOr<std::unique_ptr<ControllerServer>> Start(Options options, JobManager* manager);
  ~ControllerServer() { Stop(); }

  // The workers' addresses as they were bound: a port of 0 has become the real one.
  const std::vector<rpc::Address>& addresses() const { return for_workers_->addresses(); }
  // The operators' address, likewise; empty: there is none.
  std::vector<rpc::Address> admin_addresses() const {
    return for_operators_ == nullptr ? std::vector<rpc::Address>() : for_operators_->addresses();
  }

  // Ends the streams of workers that have been silent for too long. To be called every second or so, with the monotonic
  // time.
  void EndSilentStreams(absl::Time now) { controller_.EndSilentStreams(now); }

  // Takes no more calls, and cancels those under way after `grace`. Returns when all of them have ended.
  void Stop(absl::Duration grace = absl::Seconds(1)) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ControllerServer(const Options& options, JobManager* manager);

  ControllerService controller_;
  AdminService admin_;
  AdminService no_admin_;                            // turns operators away who call at the workers' address
  std::unique_ptr<rpc::BoundServer> for_workers_;    // constant once started
  std::unique_ptr<rpc::BoundServer> for_operators_;  // likewise; null: operators cannot call
  Mutex mutex_;                                      // held by Stop()
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_
