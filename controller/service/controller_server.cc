#include "controller/service/controller_server.h"

#include <unistd.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/listening.h"
#include "common/rpc/server.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"

namespace egeria::controller {

ControllerServer::ControllerServer(const Options& options, JobManager* manager)
    : controller_(manager, options.uploads, options.max_pending_upload_bytes), admin_(manager) {}

absl::StatusOr<std::unique_ptr<ControllerServer>> ControllerServer::Start(Options options, JobManager* manager) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  std::unique_ptr<ControllerServer> server(new ControllerServer(options, manager));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(&builder);
  std::vector<int> ports(options.listen.size());
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const rpc::Address& address = options.listen[i];
    if (address.is_unix()) EGERIA_RETURN_IF_ERROR(rpc::CheckUnixPath(address));
    EGERIA_ASSIGN_OR_RETURN(auto credentials,
                            rpc::ServerCredentialsFor(address, options.tls, options.insecure_allowed));
    builder.AddListeningPort(address.ToString(), std::move(credentials), &ports[i]);
  }
  builder.RegisterService(&server->controller_);
  builder.RegisterService(&server->admin_);
  std::unique_ptr<grpc::Server> bound = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    rpc::Address address = options.listen[i];
    if (bound == nullptr && ports[i] <= 0) {
      return address.is_unix() ? rpc::CannotListen(address, "its folder does not exist or cannot be written")
             : address.port != 0
                 ? rpc::CannotListen(address, "the port is in use, or the host is no address of this machine")
                 : rpc::CannotListen(address, "the host is no address of this machine");
    }
    if (!address.is_unix()) address.port = ports[i];
    server->addresses_.push_back(std::move(address));
  }
  if (bound == nullptr) return absl::InternalError("gRPC could not start its server");
  const MutexLock lock(&server->mutex_);
  server->server_ = std::move(bound);
  return server;
}

void ControllerServer::Stop(absl::Duration grace) {
  std::unique_ptr<grpc::Server> server;
  {
    const MutexLock lock(&mutex_);
    server = std::move(server_);
  }
  if (server == nullptr) return;
  if (auto* health = server->GetHealthCheckService()) health->Shutdown();
  server->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  controller_.WaitForStreams();
  server.reset();
  for (const rpc::Address& address : addresses_) {
    if (address.is_unix()) unlink(address.unix_path.c_str());
  }
}

}  // namespace egeria::controller
