#include "common/rpc/peer.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/rpc/unix_connection.h"
#include "grpcpp/server_context.h"

namespace egeria::rpc {

Peer PeerOf(const grpc::ServerContextBase& context) {
  Peer peer;
  peer.place = context.peer();
  absl::string_view number = peer.place;
  int descriptor = -1;
  if (absl::ConsumePrefix(&number, "fd:") && absl::SimpleAtoi(number, &descriptor)) {
    const auto user = PeerOfUnix(descriptor);
    if (!user.ok()) return peer;
    peer.uid = user->uid;
    peer.pid = user->pid;
    peer.identity = absl::StrCat("uid:", user->uid);
    peer.place = absl::StrCat("pid:", user->pid);
    return peer;
  }
  const auto authentication = context.auth_context();
  if (authentication == nullptr || !authentication->IsPeerAuthenticated()) return peer;
  for (const grpc::string_ref& name : authentication->GetPeerIdentity())
    peer.names.emplace_back(name.data(), name.size());
  std::sort(peer.names.begin(), peer.names.end());
  if (!peer.names.empty()) peer.identity = absl::StrCat("certificate:", absl::StrJoin(peer.names, ","));
  return peer;
}

}  // namespace egeria::rpc
