#ifndef EGERIA_COMMON_RPC_PEER_H_
#define EGERIA_COMMON_RPC_PEER_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

// Free of gRPC's headers but for a declaration.
namespace grpc {
class ServerContextBase;
}

namespace egeria::rpc {

// Who is at the other end of a call.
struct Peer {
  // "uid:1000" by the kernel's word for a Unix socket, "certificate:NAME" by an authority's for TLS. It is empty where
  // nobody vouches for it: over TCP without TLS.
  std::string identity;
  std::string place;               // "pid:4711" or "ipv4:10.0.0.1:50112", for people
  std::optional<uid_t> uid;        // set at a Unix socket
  pid_t pid = 0;                   // likewise; 0: not known
  std::vector<std::string> names;  // the alternative names of the certificate, or else its common name
};

// The peer of a call that is under way. Its connection keeps its descriptor until the call has ended, so that the
// answer is right even where the other side has closed it.
Peer PeerOf(const grpc::ServerContextBase& context);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_PEER_H_
