#ifndef EGERIA_COMMON_RPC_UNIX_LISTENER_H_
#define EGERIA_COMMON_RPC_UNIX_LISTENER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/acceptor.h"
#include "common/rpc/address.h"
#include "common/rpc/connection_budget.h"
#include "grpcpp/server.h"

namespace egeria::rpc {

// Listens on a Unix socket and hands connections to a gRPC server, as many as a ConnectionBudget allows, counted by
// user; others are closed. gRPC's own listener would not tell who connects: of a connection that was handed over, it
// keeps the descriptor, by which PeerOf() asks the kernel.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class UnixListener {
 public:
  struct Options {
    mode_t mode = 0600;                 // permissions of the socket's file, which say who may connect
    std::function<bool(uid_t)> admits;  // others' connections are closed; null: nobody's. The accepting thread calls it
    bool replaces = false;              // takes the place of a program that listens there
  };

  // Makes the socket. Errors: ALREADY_EXISTS [ADDRESS_IN_USE] another program listens there; UNAVAILABLE
  // [CANNOT_LISTEN].
  static absl::StatusOr<std::unique_ptr<UnixListener>> Bind(const Address& address, Options options);
  ~UnixListener() { Stop(); }

  // Begins to accept, for `server`, which must live until Stop(). `budget` must outlive this.
  void Serve(grpc::Server* server, ConnectionBudget* budget);

  // Accepts no more, and removes the socket's file if it still is the one that Bind() made. Call it before the server
  // shuts down.
  void Stop();

  const Address& address() const { return address_; }

 private:
  UnixListener(Address address, Options options) : address_(std::move(address)), options_(std::move(options)) {}

  absl::Status BindAndListen();
  // Takes a connection for `server`, or closes it and returns why.
  std::string Take(grpc::Server* server, ConnectionBudget* budget, int descriptor) const;

  const Address address_;
  const Options options_;
  std::optional<Acceptor> acceptor_;
  dev_t device_ = 0;  // where the socket's file lies, and which one it is
  ino_t inode_ = 0;
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_UNIX_LISTENER_H_
