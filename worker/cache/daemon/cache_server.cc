#include "worker/cache/daemon/cache_server.h"

#include <unistd.h>

#include <utility>

#include "common/base/status.h"
#include "common/rpc/listening.h"

namespace egeria::cache {
namespace {

// A client attaches, looks up twice, writes and drops.
constexpr int kCallsPerConnection = 16;
constexpr int kMaxMessage = 4 << 20;  // the numbers and lengths of 65,536 samples, or 1 MiB of bytes
constexpr int kMoreThreads = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<CacheServer>> CacheServer::Start(const rpc::Address& listen,
                                                                const ActivationStore::Options& options) {
  if (!listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache serves its own node only: give unix:/path, not ", listen.ToString()));
  }
  EGERIA_RETURN_IF_ERROR(rpc::CheckUnixPath(listen));  // says more than the store that another daemon has open
  EGERIA_ASSIGN_OR_RETURN(auto store, ActivationStore::Open(options));
  std::unique_ptr<CacheServer> server(new CacheServer(std::move(store)));
  rpc::BoundServer::Options bound;
  bound.listen = {listen};
  bound.unix_sockets.admits = [](uid_t uid) { return uid == geteuid() || uid == 0; };
  bound.configure = [](grpc::ServerBuilder* builder) {
    // Several ranks ask at once, each with two calls. For more calls gRPC makes a thread each, and ends it afterwards.
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 2);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 8);
    // These bound what clients can make the daemon hold. Each session has a thread, which waits for its end.
    builder->SetMaxReceiveMessageSize(kMaxMessage);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnection);
    builder->SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(CacheService::kMaxSessions + kMoreThreads));
  };
  EGERIA_ASSIGN_OR_RETURN(server->server_, rpc::BoundServer::Start(std::move(bound), {&server->service_}));
  return server;
}

}  // namespace egeria::cache
