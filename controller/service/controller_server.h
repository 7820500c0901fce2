#ifndef EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_
#define EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager.h"
#include "controller/service/admin_service.h"
#include "controller/service/controller_service.h"
#include "grpcpp/server.h"

namespace egeria::controller {

// The controller's gRPC server: the Controller, Admin and health services on one or more addresses.
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
    std::vector<rpc::Address> listen;  // at least one; port 0 takes any free one
    rpc::TlsFiles tls;
    bool insecure_allowed = false;  // whether addresses other than loopback need no TLS
    UploadLimits uploads;
    size_t max_pending_upload_bytes = size_t{2} << 30;  // unfinished uploads of all streams together
  };

  // `manager` must outlive the server.
  // Errors: those of rpc::ServerCredentialsFor(); ALREADY_EXISTS [ADDRESS_IN_USE] another program listens there;
  // UNAVAILABLE [CANNOT_LISTEN] it cannot listen there for any other reason.
  static absl::StatusOr<std::unique_ptr<ControllerServer>> Start(Options options, JobManager* manager);
  ~ControllerServer() { Stop(); }

  // The addresses as they were bound: a port of 0 has become the real one.
  const std::vector<rpc::Address>& addresses() const { return addresses_; }

  // Ends the streams of workers that have been silent for too long. To be called every second or so, with the monotonic
  // time.
  void EndSilentStreams(absl::Time now) { controller_.EndSilentStreams(now); }

  // Takes no more calls, and cancels those under way after `grace`. Returns when all of them have ended.
  void Stop(absl::Duration grace = absl::Seconds(1)) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ControllerServer(const Options& options, JobManager* manager);

  ControllerService controller_;
  AdminService admin_;
  std::vector<rpc::Address> addresses_;

  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_CONTROLLER_SERVER_H_
