#include "common/rpc/listening.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"

namespace egeria::rpc {
namespace {

absl::Status AddressInUse(const Address& address) {
  return NamedError(absl::StatusCode::kAlreadyExists, "ADDRESS_IN_USE", "another program listens on ",
                    address.ToString(), ": stop it, or give --listen another address");
}

}  // namespace

absl::Status CannotListen(const Address& address, const std::string& why) {
  return NamedError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", address.ToString(), ": ", why);
}

absl::Status CheckUnixPath(const Address& address) {
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
  if (connected == 0 || error == EAGAIN || error == EINPROGRESS) return AddressInUse(address);
  if (error == ECONNREFUSED) return absl::OkStatus();
  return CannotListen(address, std::strerror(error));
}

}  // namespace egeria::rpc
