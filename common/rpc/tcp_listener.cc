#include "common/rpc/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/listening.h"

namespace egeria::rpc {
namespace {

// The port of a socket that is bound.
int PortOf(int descriptor) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &size);
  const in_port_t port = name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(name).sin_port;
  return ntohs(port);
}

// The address at the other end of a connection, without its port; "" where it is gone already.
std::string HostOf(int descriptor) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  char host[NI_MAXHOST];
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

// A socket that listens; -1 with errno.
int ListenAt(const addrinfo& where, int port) {
  const int made = socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  sockaddr_storage name = {};
  std::memcpy(&name, where.ai_addr, where.ai_addrlen);
  if (where.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(name).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(name).sin_port = htons(port);
  }
  const int on = 1, off = 0;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // connections inherit it
  if (where.ai_family == AF_INET6) setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(made, reinterpret_cast<const sockaddr*>(&name), where.ai_addrlen) == 0 && listen(made, kBacklog) == 0) {
    return made;
  }
  const int error = errno;
  close(made);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Bind(const Address& address) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (getaddrinfo(address.host.c_str(), nullptr, &hints, &found) != 0) {
    return CannotListen(address, "the host is no address of this machine");
  }
  const absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::vector<int> listening;
  Address bound = address;
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int made = ListenAt(*each, bound.port);
    if (made < 0) {
      // A name may have addresses of a family that this machine does not speak.
      if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) error = errno;
      continue;
    }
    listening.push_back(made);
    bound.port = PortOf(made);
  }
  if (error == 0 && !listening.empty()) {
    return std::unique_ptr<TcpListener>(new TcpListener(std::move(bound), std::move(listening)));
  }
  for (const int each : listening) close(each);
  return CannotListen(address, error == EADDRINUSE ? "the port is in use"
                               : error == 0        ? "the host is no address of this machine"
                                                   : std::strerror(error));
}

TcpListener::TcpListener(Address address, std::vector<int> listening)
    : address_(std::move(address)), acceptor_(address_.ToString(), std::move(listening)) {}

void TcpListener::AddTo(grpc::ServerBuilder* builder, std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server_ = builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::move(credentials));
}

void TcpListener::Serve(ConnectionBudget* budget) {
  acceptor_.Start([this, budget](int descriptor) -> std::string {
    const std::string host = HostOf(descriptor);
    if (host.empty() || !budget->Add(descriptor, host)) {
      close(descriptor);
      return host.empty()
                 ? ""
                 : absl::StrCat(host, ": this address has as many as one may have, or there are too many in all");
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = descriptor;
    server_->HandleNewConnection(&connection);
    return "";
  });
}

}  // namespace egeria::rpc
