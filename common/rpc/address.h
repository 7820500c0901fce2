#ifndef EGERIA_COMMON_RPC_ADDRESS_H_
#define EGERIA_COMMON_RPC_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace egeria::rpc {

// Where a controller listens: a Unix socket, or a TCP port. Thread-compatible.
struct Address {
  std::string unix_path;  // absolute; empty for TCP
  std::string host;       // a name, an IPv4 or an IPv6 address without brackets; empty for a Unix socket
  int port = 0;           // 0 asks a server for any free port

  bool is_unix() const { return !unix_path.empty(); }

  // True where only this machine can connect: a Unix socket, 127.0.0.0/8, ::1 and "localhost". Any other
  // name counts as remote, whatever it resolves to today.
  bool IsLocal() const;

  // The text that gRPC, users and ParseAddress know: "unix:/path", "host:port", "[::1]:port".
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

// Reads "unix:/path" (also "unix:///path"), "host:port" or "[ipv6]:port".
// Errors: INVALID_ARGUMENT with an example of what is right, for a relative or too long path, a missing host
// or port, a port that is no number under 65,536.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Where operators call the controller that listens at this Unix socket, unless it was told otherwise: the same path
// with ".admin" behind it. Errors: INVALID_ARGUMENT the path is too long, or the address is none of a Unix socket.
absl::StatusOr<Address> AdminAddress(const Address& controller);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_ADDRESS_H_
