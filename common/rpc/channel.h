#ifndef EGERIA_COMMON_RPC_CHANNEL_H_
#define EGERIA_COMMON_RPC_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "grpcpp/channel.h"

namespace egeria::rpc {

// The largest message that a server takes, which is a registration with every module's graph; parsing it takes some ten
// times as much memory. The largest one that a client takes, and the largest piece of an upload.
constexpr int kMaxRequestBytes = 16 << 20;
constexpr int kMaxResponseBytes = 64 << 20;
constexpr size_t kMaxChunkBytes = size_t{1} << 20;

// A channel to a daemon. Every call on it needs a deadline, or a stream that its owner can cancel. A peer that is gone
// or stopped is noticed in about 4 s by keepalive pings.
//
// Over TCP it connects on first use, and again whenever the connection is lost (after 0.2 to 2 s). Proxies of the
// environment are ignored, since a controller is a neighbour. At a Unix socket the connection is made here, to a user
// who is trusted; see ConnectUnix(). When it is lost every call fails with UNAVAILABLE, and its owner makes another
// channel.
//
// Errors: INVALID_ARGUMENT port 0; those of ChannelCredentialsFor() and ConnectUnix().
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const Address& address, const TlsFiles& tls);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CHANNEL_H_
