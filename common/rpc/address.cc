#include "common/rpc/address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace egeria::rpc {
namespace {

// sun_path holds the terminating zero too.
constexpr size_t kMaxUnixPath = sizeof(sockaddr_un::sun_path) - 1;

template <typename... Args>
absl::Status Bad(absl::string_view text, const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("address '", text, "' ", why..., "; write unix:/path/to/socket or host:port"));
}

absl::StatusOr<Address> ParseUnix(absl::string_view text, absl::string_view path) {
  if (absl::StartsWith(path, "//")) {
    path.remove_prefix(2);
    if (!absl::StartsWith(path, "/")) return Bad(text, "names a host, which a Unix socket does not have");
  }
  if (!absl::StartsWith(path, "/")) return Bad(text, "needs an absolute path");
  if (path.size() > kMaxUnixPath) {
    return Bad(text, "is a path of ", path.size(), " bytes, and a socket's path has at most ", kMaxUnixPath);
  }
  if (path.find('\0') != absl::string_view::npos) return Bad(text, "contains a zero byte");
  Address address;
  address.unix_path = std::string(path);
  return address;
}

}  // namespace

bool Address::IsLocal() const {
  if (is_unix() || host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return false;
}

std::string Address::ToString() const {
  if (is_unix()) return absl::StrCat("unix:", unix_path);
  if (absl::StrContains(host, ":")) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) return ParseUnix(text, rest);

  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return Bad(text, "has no port");
  absl::string_view host = rest.substr(0, colon);
  const absl::string_view port = rest.substr(colon + 1);

  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return Bad(text, "opens a bracket and does not close it");
    in6_addr ignored;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &ignored) != 1) {
      return Bad(text, "has no IPv6 address in brackets");
    }
  } else if (absl::StrContains(host, ":")) {
    return Bad(text, "needs brackets around its IPv6 address");
  }
  if (host.empty()) return Bad(text, "has no host");
  if (host.find_first_of("/ \t\r\n,") != absl::string_view::npos) return Bad(text, "is not a host and a port");

  Address address;
  address.host = std::string(host);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!digits || !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return Bad(text, "has '", port, "' for a port");
  }
  return address;
}

absl::StatusOr<Address> AdminAddress(const Address& controller) {
  if (!controller.is_unix()) {
    return absl::InvalidArgumentError(absl::StrCat("the address for operators does not follow from ",
                                                   controller.ToString(), ": over TCP it is given by itself"));
  }
  return ParseAddress(absl::StrCat(controller.ToString(), ".admin"));
}

}  // namespace egeria::rpc
