#ifndef EGERIA_COMMON_RPC_LISTENING_H_
#define EGERIA_COMMON_RPC_LISTENING_H_

#include <string>

#include "absl/status/status.h"
#include "common/rpc/address.h"

namespace egeria::rpc {

// So many connections may wait to be accepted.
inline constexpr int kBacklog = 1024;

// UNAVAILABLE [CANNOT_LISTEN] with the address and the reason.
absl::Status CannotListen(const Address& address, const std::string& why);

// gRPC replaces whatever socket lies at the path, even one that somebody serves. A socket that nobody
// answers is what a killed process has left, and may be replaced.
// Errors: ALREADY_EXISTS [ADDRESS_IN_USE] another program listens there; UNAVAILABLE [CANNOT_LISTEN].
absl::Status CheckUnixPath(const Address& address);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_LISTENING_H_
