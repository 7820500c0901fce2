#ifndef EGERIA_COMMON_RPC_UNIX_CONNECTION_H_
#define EGERIA_COMMON_RPC_UNIX_CONNECTION_H_

#include <sys/types.h>
#include <sys/un.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/address.h"

// Free of gRPC's headers.
namespace egeria::rpc {

// Connects to a Unix socket, without waiting, where a user listens whom this process trusts: its own, root, or one whom
// EGERIA_TRUSTED_USERS names (names or numbers, with commas between them). Whoever may write to a folder can put a
// socket there; the kernel says who listens. Returns a descriptor, which the caller closes.
// Errors: PERMISSION_DENIED [UNTRUSTED_SOCKET] somebody else listens; UNAVAILABLE nobody does, or it cannot be reached.
absl::StatusOr<int> ConnectUnix(const Address& address);

// A Unix address as the kernel takes it. ParseAddress() has refused paths that are too long.
sockaddr_un UnixName(const Address& address);

// Connects to whoever listens, without waiting. Returns a descriptor, which the caller closes; -1 with errno.
int ConnectUnixUnchecked(const Address& address);

// The user at the other end of a connected Unix socket. Errors: UNAVAILABLE the descriptor is none.
struct UnixPeer {
  uid_t uid;
  pid_t pid;  // 0: the process is in a namespace that cannot be seen from here
};
absl::StatusOr<UnixPeer> PeerOfUnix(int descriptor);

// "1000 (alice)", or the number alone where the user has no name.
std::string UserText(uid_t uid);

// True for a user's number, or the name that he has.
bool IsUser(absl::string_view text, uid_t uid);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_UNIX_CONNECTION_H_
