#include "tests/support/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace egeria::testing {

std::string HttpGet(const std::string& url) {
  const size_t host = url.find("://") + 3;
  const size_t colon = url.find(':', host), slash = url.find('/', host);
  if (colon == std::string::npos || slash == std::string::npos) return "";
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(url.c_str() + colon + 1)));
  if (inet_pton(AF_INET, url.substr(host, colon - host).c_str(), &address.sin_addr) != 1) return "";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience = {30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string response;
  const std::string request = "GET " + url.substr(slash) + " HTTP/1.0\r\nHost: test\r\n\r\n";
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t count; (count = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      response.append(buffer, static_cast<size_t>(count));
    }
  }
  close(fd);
  const size_t body = response.find("\r\n\r\n");
  const bool fine = response.compare(0, 5, "HTTP/") == 0 && response.compare(8, 4, " 200") == 0;
  return fine && body != std::string::npos ? response.substr(body + 4) : "";
}

}  // namespace egeria::testing
