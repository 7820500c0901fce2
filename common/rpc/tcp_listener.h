#ifndef EGERIA_COMMON_RPC_TCP_LISTENER_H_
#define EGERIA_COMMON_RPC_TCP_LISTENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/acceptor.h"
#include "common/rpc/address.h"
#include "common/rpc/connection_budget.h"
#include "grpcpp/server_builder.h"

namespace egeria::rpc {

// Listens on a TCP port, at every address of the host's name, and hands connections to a gRPC server. A
// ConnectionBudget says how many, by the address that they come from. gRPC's own listener takes any number. Once the
// process has had no descriptor for a connection, it never accepts again.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class TcpListener {
 public:
  // Makes the sockets; a port of 0 becomes a free one. Errors: UNAVAILABLE [CANNOT_LISTEN].
  static absl::StatusOr<std::unique_ptr<TcpListener>> Bind(const Address& address);
  ~TcpListener() { Stop(); }

  // The server that `builder` is about to build takes the connections, with these credentials.
  void AddTo(grpc::ServerBuilder* builder, std::shared_ptr<grpc::ServerCredentials> credentials);
  // Begins to accept, for the server, which must live until Stop(). `budget` must outlive this.
  void Serve(ConnectionBudget* budget);
  // Call it before the server shuts down.
  void Stop() { acceptor_.Stop(); }

  // With the port that was bound.
  const Address& address() const { return address_; }

 private:
  TcpListener(Address address, std::vector<int> listening);

  const Address address_;
  Acceptor acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_TCP_LISTENER_H_
