#include "common/rpc/unix_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/private_folder.h"
#include "common/base/status.h"
#include "common/rpc/connection_budget.h"
#include "common/rpc/listening.h"
#include "common/rpc/unix_connection.h"
#include "common/thread/thread.h"
#include "grpcpp/server_posix.h"

namespace egeria::rpc {
namespace {

constexpr int kBacklog = 1024;
constexpr int kRetryMilliseconds = 100;

bool IsShortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

// Lets one line a second through.
class Seldom {
 public:
  bool Now() {
    const absl::Time now = absl::Now();
    if (now < next_ && next_ < now + absl::Seconds(2)) return false;
    next_ = now + absl::Seconds(1);
    return true;
  }

 private:
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace

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
  stopping_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listening_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (stopping_ < 0 || listening_ < 0) return CannotListen(address_, std::strerror(errno));
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  if (OthersCanWriteTo(folder)) {
    LogWarning("other users can write to ", folder, " and put a socket of their own where ", address_.ToString(),
               " is when it has gone; use a folder of your own");
  }
  unlink(path.c_str());  // CheckUnixPath() has found a socket that may go, or nothing
  struct stat made;
  // Nobody can connect before listen().
  if (bind(listening_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      chmod(path.c_str(), options_.mode) != 0 || lstat(path.c_str(), &made) != 0 || listen(listening_, kBacklog) != 0) {
    return CannotListen(address_, errno == ENOENT ? "its folder does not exist" : std::strerror(errno));
  }
  device_ = made.st_dev;
  inode_ = made.st_ino;
  return absl::OkStatus();
}

void UnixListener::Serve(grpc::Server* server) {
  thread_ = StartThread("accept", [this, server] { AcceptUntilStopped(server); });
}

bool UnixListener::Wait(int descriptor, int milliseconds) const {
  pollfd waiting[] = {{stopping_, POLLIN, 0}, {descriptor, POLLIN, 0}};
  poll(waiting, descriptor >= 0 ? 2 : 1, milliseconds);
  return waiting[0].revents == 0;
}

void UnixListener::AcceptUntilStopped(grpc::Server* server) {
  bool short_of = false;
  Seldom seldom;
  ConnectionBudget budget(ConnectionBudget::Most());
  while (Wait(listening_, -1)) {
    const int descriptor = accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (!IsShortage(errno)) continue;
      if (!std::exchange(short_of, true)) {
        LogError(address_.ToString(), ": no connection can be accepted until others end: ", std::strerror(errno));
      }
      if (!Wait(-1, kRetryMilliseconds)) return;
      continue;
    }
    if (std::exchange(short_of, false)) LogInfo(address_.ToString(), ": connections are accepted again");
    const auto peer = PeerOfUnix(descriptor);
    const bool admitted = peer.ok() && (options_.admits == nullptr || options_.admits(peer->uid));
    // This process looks by connections of its own whether it is deaf.
    if (admitted && (peer->pid == getpid() || budget.Add(descriptor, peer->uid))) {
      grpc::AddInsecureChannelFromFd(server, descriptor);
      continue;
    }
    if (peer.ok() && seldom.Now()) {
      LogWarning(address_.ToString(), ": refused a connection of user ", UserText(peer->uid), ", process ", peer->pid,
                 admitted ? ": this user has as many as one may have, or there are too many in all" : "");
    }
    close(descriptor);
  }
}

void UnixListener::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stopping_, 1);
    thread_.join();
  }
  if (inode_ != 0) {
    struct stat found;
    const bool ours = lstat(address_.unix_path.c_str(), &found) == 0 && found.st_dev == device_ &&
                      found.st_ino == std::exchange(inode_, 0);
    if (ours) unlink(address_.unix_path.c_str());
  }
  for (int* descriptor : {&listening_, &stopping_}) {
    if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
  }
}

}  // namespace egeria::rpc
