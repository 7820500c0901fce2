#include "common/rpc/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/private_folder.h"
#include "common/base/status.h"
#include "common/rpc/listening.h"
#include "common/rpc/unix_connection.h"
#include "grpcpp/server_posix.h"

namespace egeria::rpc {

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Bind(const Address& address, Options options) {
  const absl::Status free = CheckUnixPath(address);
  if (!(options.replaces && absl::IsAlreadyExists(free))) EGERIA_RETURN_IF_ERROR(free);
  std::unique_ptr<UnixListener> listener(new UnixListener(address, std::move(options)));
  EGERIA_RETURN_IF_ERROR(listener->BindAndListen());
  return listener;
}

absl::Status UnixListener::BindAndListen() {
  const sockaddr_un name = UnixName(address_);
  const std::string& path = address_.unix_path;
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listening < 0) return CannotListen(address_, std::strerror(errno));
  acceptor_.emplace(address_.ToString(), std::vector<int>{listening});
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  if (OthersCanWriteTo(folder)) {
    LogWarning("other users can write to ", folder, " and put a socket of their own where ", address_.ToString(),
               " is when it has gone; use a folder of your own");
  }
  unlink(path.c_str());  // CheckUnixPath() has found a socket that may go, or nothing
  struct stat made;
  // Nobody can connect before listen().
  if (bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      chmod(path.c_str(), options_.mode) != 0 || lstat(path.c_str(), &made) != 0 || listen(listening, kBacklog) != 0) {
    return CannotListen(address_, errno == ENOENT ? "its folder does not exist" : std::strerror(errno));
  }
  device_ = made.st_dev;
  inode_ = made.st_ino;
  return absl::OkStatus();
}

void UnixListener::Serve(grpc::Server* server, ConnectionBudget* budget) {
  acceptor_->Start([this, server, budget](int descriptor) { return Take(server, budget, descriptor); });
}

std::string UnixListener::Take(grpc::Server* server, ConnectionBudget* budget, int descriptor) const {
  const auto peer = PeerOfUnix(descriptor);
  const bool admitted = peer.ok() && (options_.admits == nullptr || options_.admits(peer->uid));
  // This process looks by connections of its own whether it is deaf.
  if (admitted && (peer->pid == getpid() || budget->Add(descriptor, UserText(peer->uid)))) {
    grpc::AddInsecureChannelFromFd(server, descriptor);
    return "";
  }
  close(descriptor);
  if (!peer.ok()) return "";
  const absl::string_view why = admitted ? ": this user has as many as one may have, or there are too many in all" : "";
  return absl::StrCat("user ", UserText(peer->uid), ", process ", peer->pid, why);
}

void UnixListener::Stop() {
  if (inode_ != 0) {
    struct stat found;
    const bool ours = lstat(address_.unix_path.c_str(), &found) == 0 && found.st_dev == device_ &&
                      found.st_ino == std::exchange(inode_, 0);
    if (ours) unlink(address_.unix_path.c_str());
  }
  acceptor_.reset();
}

}  // namespace egeria::rpc
