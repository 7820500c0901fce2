#include "worker/cache/daemon/cache_server.h"

#include <unistd.h>

#include <utility>

#include "common/base/status.h"
#include "common/rpc/listening.h"
#include "common/rpc/server.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace egeria::cache {

absl::StatusOr<std::unique_ptr<CacheServer>> CacheServer::Start(const rpc::Address& listen,
                                                                const ActivationStore::Options& options) {
  if (!listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache serves its own node only: give unix:/path, not ", listen.ToString()));
  }
  EGERIA_RETURN_IF_ERROR(rpc::CheckUnixPath(listen));
  EGERIA_ASSIGN_OR_RETURN(auto store, ActivationStore::Open(options));
  std::unique_ptr<CacheServer> server(new CacheServer(listen, std::move(store)));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(&builder);
  // Several ranks ask at once, each with two calls. For more calls gRPC makes a thread each, and ends it afterwards.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 2);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 8);
  int port = 0;
  builder.AddListeningPort(listen.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&server->service_);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return rpc::CannotListen(listen, "its folder does not exist or cannot be written");
  }
  return server;
}

void CacheServer::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  if (auto* health = server_->GetHealthCheckService()) health->Shutdown();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
  unlink(listen_.unix_path.c_str());
}

}  // namespace egeria::cache
