#include "launcher/connect.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/unix_connection.h"

namespace egeria::run {
namespace {

constexpr int kConnectMilliseconds = 2000;

absl::Status Connect(int family, const sockaddr* address, socklen_t length) {
  const int socket_fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return absl::UnavailableError(std::strerror(errno));
  int error = connect(socket_fd, address, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wait{socket_fd, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (poll(&wait, 1, kConnectMilliseconds) <= 0) error = ETIMEDOUT;
    else getsockopt(socket_fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  close(socket_fd);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

}  // namespace

absl::Status CheckThatSomebodyListens(const std::string& text) {
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(text));
  if (address.is_unix()) {
    EGERIA_ASSIGN_OR_RETURN(const int connected, rpc::ConnectUnix(address));
    close(connected);
    return absl::OkStatus();
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  absl::Status status = absl::UnavailableError("the name has no address");
  for (const addrinfo* each = found; each != nullptr && !status.ok(); each = each->ai_next) {
    status = Connect(each->ai_family, each->ai_addr, each->ai_addrlen);
  }
  freeaddrinfo(found);
  return status;
}

}  // namespace egeria::run
