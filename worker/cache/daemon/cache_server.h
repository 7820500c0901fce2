#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"
#include "grpcpp/server.h"
#include "worker/cache/daemon/activation_store.h"
#include "worker/cache/daemon/cache_service.h"

namespace egeria::cache {

// The daemon without its command line: the store, its service and the health service on one Unix socket.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class CacheServer {
 public:
  // Errors: INVALID_ARGUMENT an address that is no Unix socket; those of ActivationStore::Open() and
  // rpc::CheckUnixPath().
  static absl::StatusOr<std::unique_ptr<CacheServer>> Start(const rpc::Address& listen,
                                                            const ActivationStore::Options& options);
  ~CacheServer() { Stop(); }

  // Ends all sessions and calls, after `grace` at the latest, and closes the store.
  void Stop(absl::Duration grace = absl::Seconds(1));

  const ActivationStore& store() const { return *store_; }
  const CacheService& service() const { return service_; }

 private:
  CacheServer(const rpc::Address& listen, std::unique_ptr<ActivationStore> store)
      : listen_(listen), store_(std::move(store)), service_(store_.get()) {}

  const rpc::Address listen_;
  std::unique_ptr<ActivationStore> store_;
  CacheService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_
