#include "common/rpc/bound_server.h"

#include <utility>

#include "common/base/status.h"
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
  for (const Address& address : options.listen) {
    if (address.is_unix()) {
      EGERIA_ASSIGN_OR_RETURN(auto socket, UnixListener::Bind(address, options.unix_sockets));
      bound->addresses_.push_back(address);
      bound->sockets_.push_back(std::move(socket));
      continue;
    }
    EGERIA_ASSIGN_OR_RETURN(auto credentials, ServerCredentialsFor(address, options.tls, options.insecure_allowed));
    EGERIA_ASSIGN_OR_RETURN(auto port, TcpListener::Bind(address));
    port->AddTo(&builder, std::move(credentials));
    bound->addresses_.push_back(port->address());
    bound->ports_.push_back(std::move(port));
  }
  bound->server_ = builder.BuildAndStart();
  if (bound->server_ == nullptr) return absl::InternalError("gRPC could not start its server");
  for (const auto& socket : bound->sockets_) socket->Serve(bound->server_.get(), &bound->connections_);
  for (const auto& port : bound->ports_) port->Serve(&bound->connections_);
  return bound;
}

void BoundServer::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  for (const auto& socket : sockets_) socket->Stop();
  for (const auto& port : ports_) port->Stop();
  if (auto* health = server_->GetHealthCheckService()) health->Shutdown();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
}

}  // namespace egeria::rpc
