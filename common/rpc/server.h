#ifndef EGERIA_COMMON_RPC_SERVER_H_
#define EGERIA_COMMON_RPC_SERVER_H_

#include "grpcpp/server_builder.h"

namespace egeria::rpc {

// The server's side of MakeChannel(): the same message bounds; the clients' frequent keepalive pings are
// allowed; keepalive pings of its own, because a dead training process whose forked child still holds the
// socket looks alive otherwise; and no sharing of a TCP port with a second server.
void ConfigureServer(grpc::ServerBuilder* builder);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_SERVER_H_
