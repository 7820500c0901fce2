#include "common/rpc/unix_connection.h"

#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace egeria::rpc {
namespace {

constexpr char kTrusted[] = "EGERIA_TRUSTED_USERS";

bool IsTrusted(uid_t uid) {
  if (uid == geteuid() || uid == 0) return true;
  const char* const trusted = std::getenv(kTrusted);
  if (trusted == nullptr) return false;
  for (const absl::string_view user : absl::StrSplit(trusted, ',', absl::SkipWhitespace())) {
    if (IsUser(absl::StripAsciiWhitespace(user), uid)) return true;
  }
  return false;
}

absl::Status CheckPeer(int descriptor, const Address& address) {
  EGERIA_ASSIGN_OR_RETURN(const UnixPeer peer, PeerOfUnix(descriptor));
  if (IsTrusted(peer.uid)) return absl::OkStatus();
  return NamedError(absl::StatusCode::kPermissionDenied, "UNTRUSTED_SOCKET", "user ", UserText(peer.uid),
                    " listens at ", address.ToString(),
                    ", who is neither this user nor root; if that is meant, name him in ", kTrusted);
}

}  // namespace

absl::StatusOr<UnixPeer> PeerOfUnix(int descriptor) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("the other end is not known: ", std::strerror(errno)));
  }
  return UnixPeer{peer.uid, peer.pid};
}

std::string UserText(uid_t uid) {
  passwd entry, *found = nullptr;
  char buffer[4096];
  const bool named = getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr;
  return named ? absl::StrCat(uid, " (", found->pw_name, ")") : absl::StrCat(uid);
}

bool IsUser(absl::string_view text, uid_t uid) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number == uid;
  passwd entry, *found = nullptr;
  char buffer[4096];
  const int error = getpwnam_r(std::string(text).c_str(), &entry, buffer, sizeof(buffer), &found);
  return error == 0 && found != nullptr && found->pw_uid == uid;
}

sockaddr_un UnixName(const Address& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, address.unix_path.c_str(), sizeof(name.sun_path) - 1);
  return name;
}

int ConnectUnixUnchecked(const Address& address) {
  const sockaddr_un name = UnixName(address);
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0 || connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    return descriptor;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

absl::StatusOr<int> ConnectUnix(const Address& address) {
  const int descriptor = ConnectUnixUnchecked(address);
  if (descriptor < 0) {
    const char* const why = errno == EAGAIN ? "it takes no more connections" : std::strerror(errno);
    return absl::UnavailableError(absl::StrCat("failed to connect to ", address.ToString(), ": ", why));
  }
  const absl::Status status = CheckPeer(descriptor, address);
  if (status.ok()) return descriptor;
  close(descriptor);
  return status;
}

}  // namespace egeria::rpc
