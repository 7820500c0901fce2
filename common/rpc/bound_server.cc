#include "common/rpc/bound_server.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/listening.h"
#include "common/rpc/server.h"
#include "grpcpp/health_check_service_interface.h"

namespace egeria::rpc {

absl::StatusOr<std::unique_ptr<BoundServer>> BoundServer::Start(Options options,
                                                                const std::vector<grpc::Service*>& services) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  auto bound = std::make_unique<BoundServer>();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  if (options.configure) options.configure(&builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::vector<int> ports(options.listen.size());
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const Address& address = options.listen[i];
    if (address.is_unix()) {
      EGERIA_ASSIGN_OR_RETURN(auto socket, UnixListener::Bind(address, options.unix_sockets));
      bound->sockets_.push_back(std::move(socket));
      continue;
    }
    EGERIA_ASSIGN_OR_RETURN(auto credentials, ServerCredentialsFor(address, options.tls, options.insecure_allowed));
    builder.AddListeningPort(address.ToString(), std::move(credentials), &ports[i]);
  }
  bound->server_ = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    Address address = options.listen[i];
    if (bound->server_ == nullptr && !address.is_unix() && ports[i] <= 0) {
      return CannotListen(address, address.port != 0 ? "the port is in use, or the host is no address of this machine"
                                                     : "the host is no address of this machine");
    }
    if (!address.is_unix()) address.port = ports[i];
    bound->addresses_.push_back(std::move(address));
  }
  if (bound->server_ == nullptr) return absl::InternalError("gRPC could not start its server");
  for (const auto& socket : bound->sockets_) socket->Serve(bound->server_.get());
  return bound;
}

void BoundServer::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  for (const auto& socket : sockets_) socket->Stop();
  if (auto* health = server_->GetHealthCheckService()) health->Shutdown();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
}

}  // namespace egeria::rpc
