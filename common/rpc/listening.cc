#include "common/rpc/listening.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"
#include "common/rpc/unix_connection.h"

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
  const int connected = ConnectUnixUnchecked(address);
  const int error = errno;
  if (connected >= 0) close(connected);
  if (connected >= 0 || error == EAGAIN || error == EINPROGRESS) return AddressInUse(address);
  if (error == ECONNREFUSED) return absl::OkStatus();
  return CannotListen(address, std::strerror(error));
}

}  // namespace egeria::rpc
