#ifndef EGERIA_COMMON_RPC_BOUND_SERVER_H_
#define EGERIA_COMMON_RPC_BOUND_SERVER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"
#include "common/rpc/connection_budget.h"
#include "common/rpc/credentials.h"
#include "common/rpc/tcp_listener.h"
#include "common/rpc/unix_listener.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace egeria::rpc {

// A gRPC server and the addresses that it listens on. It offers the health service, too.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class BoundServer {
 public:
  struct Options {
    std::vector<Address> listen;  // at least one; port 0 takes any free one
    UnixListener::Options unix_sockets;
    TlsFiles tls;
    bool insecure_allowed = false;                                  // whether addresses other than loopback need no TLS
    std::function<void(grpc::ServerBuilder*)> configure = nullptr;  // anything beside ConfigureServer()
  };

  // The services must outlive the server.
  // Errors: those of ServerCredentialsFor(), UnixListener::Bind() and TcpListener::Bind().
  static absl::StatusOr<std::unique_ptr<BoundServer>> Start(Options options,
                                                            const std::vector<grpc::Service*>& services);
  ~BoundServer() { Stop(absl::ZeroDuration()); }

  // The addresses as they were bound: a port of 0 has become the real one.
  const std::vector<Address>& addresses() const { return addresses_; }

  // Takes no more calls, cancels those under way after `grace`, and returns when all of them have ended.
  void Stop(absl::Duration grace);

 private:
  std::vector<Address> addresses_;
  ConnectionBudget connections_{ConnectionBudget::Most()};
  std::vector<std::unique_ptr<UnixListener>> sockets_;
  std::vector<std::unique_ptr<TcpListener>> ports_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_BOUND_SERVER_H_
