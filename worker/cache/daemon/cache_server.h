#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"
#include "common/rpc/bound_server.h"
#include "worker/cache/daemon/activation_store.h"
#include "worker/cache/daemon/cache_service.h"

namespace egeria::cache {

// The daemon without its command line: the store, its service and the health service on one Unix socket.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class CacheServer {
 public:
  // Errors: INVALID_ARGUMENT an address that is no Unix socket; those of ActivationStore::Open() and
  // rpc::BoundServer::Start().
  static absl::StatusOr<std::unique_ptr<CacheServer>> Start(const rpc::Address& listen,
                                                            const ActivationStore::Options& options);

  // Ends all sessions and calls, after `grace` at the latest.
  void Stop(absl::Duration grace = absl::Seconds(1)) { server_->Stop(grace); }

  const ActivationStore& store() const { return *store_; }
  const CacheService& service() const { return service_; }

 private:
  explicit CacheServer(std::unique_ptr<ActivationStore> store) : store_(std::move(store)), service_(store_.get()) {}

  std::unique_ptr<ActivationStore> store_;
  CacheService service_;
  std::unique_ptr<rpc::BoundServer> server_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVER_H_
