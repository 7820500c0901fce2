#ifndef EGERIA_COMMON_RPC_CHANNEL_H_
#define EGERIA_COMMON_RPC_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "grpcpp/channel.h"

namespace egeria::rpc {

// The largest message that either side takes (a registration carries every module's graph), and the largest
// piece of an upload.
constexpr int kMaxMessageBytes = 64 << 20;
constexpr size_t kMaxChunkBytes = size_t{1} << 20;

// A channel to a controller, not yet connected. It connects on first use and again whenever the connection
// is lost (after 0.2 to 2 s), and notices a peer that is gone or stopped in about 4 s by keepalive pings.
// Proxies of the environment are ignored: a controller is a neighbour. Every call on it needs a deadline, or
// a stream that its owner can cancel.
// Errors: INVALID_ARGUMENT port 0; those of ChannelCredentialsFor.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const Address& address, const TlsFiles& tls);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CHANNEL_H_
