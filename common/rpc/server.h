#ifndef EGERIA_COMMON_RPC_SERVER_H_
#define EGERIA_COMMON_RPC_SERVER_H_

#include "grpcpp/server_builder.h"

namespace egeria::rpc {

// Configures the server's side of MakeChannel(). It has the same message bounds, allows the clients' frequent keepalive
// pings, and does not share its TCP port with a second server. It sends keepalive pings of its own, because a dead
// training process whose forked child still holds the socket looks alive otherwise.
void ConfigureServer(grpc::ServerBuilder* builder);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_SERVER_H_
