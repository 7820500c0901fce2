#include "common/rpc/channel.h"

#include "common/base/status.h"
#include "common/rpc/library.h"
#include "common/rpc/unix_connection.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/support/channel_arguments.h"

namespace egeria::rpc {
namespace {

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxResponseBytes);
  arguments.SetMaxSendMessageSize(kMaxRequestBytes);
  // Without these the reconnect backoff grows to two minutes, and a stopped peer is never noticed.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A keepalive ping waits for the answer to a bandwidth probe under way, which a stopped peer never gives.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each channel has a connection of its own, so that two agents of one process (tests, notebooks) do not share their
  // fate.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const Address& address, const TlsFiles& tls) {
  KeepLibrary();
  if (address.is_unix()) {
    EGERIA_ASSIGN_OR_RETURN(const int descriptor, ConnectUnix(address));
    return grpc::CreateCustomInsecureChannelFromFd(address.ToString(), descriptor, Arguments());
  }
  if (address.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot connect to port 0 (", address.ToString(), ")"));
  }
  EGERIA_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFor(address, tls));
  return grpc::CreateCustomChannel(address.ToString(), credentials, Arguments());
}

}  // namespace egeria::rpc
