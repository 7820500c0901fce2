#include "controller/service/controller_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/server.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"

namespace egeria::controller {
namespace {

absl::Status InUse(const rpc::Address& address) {
  return NamedError(absl::StatusCode::kAlreadyExists, "ADDRESS_IN_USE", "another program listens on ",
                    address.ToString(), ": stop it, or give --listen another address");
}

absl::Status CannotListen(const rpc::Address& address, const std::string& why) {
  return NamedError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", address.ToString(), ": ", why);
}

// gRPC replaces whatever socket lies at the path, even one that somebody serves. A socket that nobody
// answers is what a killed process has left, and may be replaced.
absl::Status CheckUnixPath(const rpc::Address& address) {
  struct stat info;
  if (lstat(address.unix_path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : CannotListen(address, std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return CannotListen(address, "the path exists and is no socket");
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, address.unix_path.c_str(), sizeof(name.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return CannotListen(address, std::strerror(errno));
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  const int error = errno;
  close(fd);
  if (connected == 0 || error == EAGAIN || error == EINPROGRESS) return InUse(address);
  if (error == ECONNREFUSED) return absl::OkStatus();
  return CannotListen(address, std::strerror(error));
}

}  // namespace

ControllerServer::ControllerServer(const Options& options, JobManager* manager)
    : controller_(manager, options.uploads, options.max_pending_upload_bytes), admin_(manager) {}

absl::StatusOr<std::unique_ptr<ControllerServer>> ControllerServer::Start(Options options, JobManager* manager) {
  if (options.listen.empty()) return absl::InvalidArgumentError("no address to listen on");
  std::unique_ptr<ControllerServer> server(new ControllerServer(options, manager));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(&builder);
  std::vector<int> ports(options.listen.size());
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const rpc::Address& address = options.listen[i];
    if (address.is_unix()) EGERIA_RETURN_IF_ERROR(CheckUnixPath(address));
    EGERIA_ASSIGN_OR_RETURN(auto credentials,
                            rpc::ServerCredentialsFor(address, options.tls, options.insecure_allowed));
    builder.AddListeningPort(address.ToString(), std::move(credentials), &ports[i]);
  }
  builder.RegisterService(&server->controller_);
  builder.RegisterService(&server->admin_);
  std::unique_ptr<grpc::Server> bound = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    rpc::Address address = options.listen[i];
    if (bound == nullptr && ports[i] <= 0) {
      return address.is_unix() ? CannotListen(address, "its folder does not exist or cannot be written")
             : address.port != 0
                 ? CannotListen(address, "the port is in use, or the host is no address of this machine")
                 : CannotListen(address, "the host is no address of this machine");
    }
    if (!address.is_unix()) address.port = ports[i];
    server->addresses_.push_back(std::move(address));
  }
  if (bound == nullptr) return absl::InternalError("gRPC could not start its server");
  const std::lock_guard<std::mutex> lock(server->mutex_);
  server->server_ = std::move(bound);
  return server;
}

void ControllerServer::Stop(absl::Duration grace) {
  std::unique_ptr<grpc::Server> server;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    server = std::move(server_);
  }
  if (server == nullptr) return;
  if (auto* health = server->GetHealthCheckService()) health->Shutdown();
  server->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  controller_.WaitForStreams();
  server.reset();
  for (const rpc::Address& address : addresses_) {
    if (address.is_unix()) unlink(address.unix_path.c_str());
  }
}

}  // namespace egeria::controller
