#include "common/rpc/self_check.h"

#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/rpc/unix_connection.h"

namespace egeria::rpc {
namespace {

template <typename... Args>
absl::Status Trouble(const Address& address, const Args&... what) {
  return absl::UnavailableError(absl::StrCat(address.ToString(), " ", what...));
}

// Begins to connect, and returns the socket; -1 with errno.
int Connect(const Address& address) {
  if (address.is_unix()) return ConnectUnixUnchecked(address);
  // Where it listens on all addresses, one of them will do.
  const bool any = address.host == "0.0.0.0" || address.host == "::";
  const std::string host = !any ? address.host : address.host == "::" ? "::1" : "127.0.0.1";
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) return -1;
  const absl::Cleanup release = [found] { freeaddrinfo(found); };
  const int made = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0 || connect(made, found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS) return made;
  const int error = errno;
  close(made);
  errno = error;
  return -1;
}

// Whether somebody accepts: the kernel connects also where nobody does. A server answers the end of a connection that
// has brought no call by its own end, if not by a greeting.
bool Answers(int connection, absl::Duration patience) {
  const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(patience));
  pollfd polled = {connection, POLLOUT, 0};
  if (poll(&polled, 1, milliseconds) <= 0) return false;
  shutdown(connection, SHUT_WR);
  polled = {connection, POLLIN, 0};
  return poll(&polled, 1, milliseconds) > 0;
}

// Logs what has changed.
void Update(absl::Status* status, const absl::Status& now) {
  if (*status == now) return;
  if (now.ok()) {
    LogInfo("fine again: ", status->message());
  } else {
    LogError(std::string(now.message()));
  }
  *status = now;
}

}  // namespace

void AllowDescriptors() {
  rlimit descriptors;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
}

void SelfCheck::Look() {
  const absl::Time now = MonotonicNow();
  if (now < next_look_) return;
  next_look_ = now + options_.every;
  absl::Status hearing, paths;
  for (const Address& address : addresses_) {
    const int connection = Connect(address);
    if (connection < 0) {
      const bool gone = address.is_unix() && (errno == ENOENT || errno == ECONNREFUSED);
      (gone ? paths : hearing) = gone ? Trouble(address, "has vanished: nobody can connect until this is started again")
                                      : Trouble(address, "cannot be reached: ", std::strerror(errno));
      continue;
    }
    const absl::Cleanup release = [connection] { close(connection); };
    const absl::StatusOr<UnixPeer> peer = address.is_unix() ? PeerOfUnix(connection) : absl::UnavailableError("");
    if (peer.ok() && peer->pid != getpid()) {
      paths = Trouble(address, "is the socket of another process, ", peer->pid, ": nobody can connect to this one");
    } else if (!Answers(connection, options_.patience)) {
      hearing = Trouble(address, "is deaf: connections to it are not accepted");
    }
  }
  if (hearing.ok()) deaf_since_ = absl::InfiniteFuture();
  else if (hearing_.ok()) deaf_since_ = now;
  Update(&hearing_, hearing);
  Update(&paths_, paths);
}

bool SelfCheck::IsLost() const { return MonotonicNow() - deaf_since_ > options_.lost_after; }

}  // namespace egeria::rpc
