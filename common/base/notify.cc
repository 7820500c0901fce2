#include "common/base/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace egeria {

void NotifyServiceManager(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un name = {};
  if (path == nullptr || path[0] == '\0' || std::strlen(path) >= sizeof(name.sun_path)) return;
  name.sun_family = AF_UNIX;
  std::strcpy(name.sun_path, path);
  if (path[0] == '@') name.sun_path[0] = '\0';  // an abstract socket
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  // The manager finds out by its own time limits when it misses a state.
  (void)sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&name),
               length);
  close(fd);
}

void NotifyDescriptor(int fd, const std::string& state) {
  if (fd < 0) return;
  const std::string line = state + "\n";
  if (write(fd, line.data(), line.size()) < 0) {
    // Whoever gave us the descriptor has gone; nobody is left to tell.
  }
  close(fd);
}

}  // namespace egeria
