#include "common/metrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/thread/thread.h"

namespace egeria::metrics {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMaxConnections = 256;
constexpr size_t kMaxRequest = 16'384;
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kAcceptRetry{100};

const char* Phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    default: return "Service Unavailable";
  }
}

std::string ResponseOf(const HttpServer::Answer& answer, bool with_body = true) {
  return absl::StrCat("HTTP/1.1 ", answer.status, " ", Phrase(answer.status), "\r\nContent-Type: ", answer.type,
                      "\r\nContent-Length: ", answer.body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? answer.body : "");
}

std::string Failure(int status) { return ResponseOf({.status = status, .body = absl::StrCat(Phrase(status), "\n")}); }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const rpc::Address& address,
                                                              std::map<std::string, Page> pages) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages)));
  EGERIA_RETURN_IF_ERROR(server->Listen(address));
  server->serving_ = StartThread("http", [raw = server.get()] { raw->Serve(); });
  server->making_ = StartThread("http-slow", [raw = server.get()] { raw->MakeSlowPages(); });
  return server;
}

absl::Status HttpServer::Listen(const rpc::Address& address) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const int resolved = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (resolved != 0) return absl::UnavailableError(gai_strerror(resolved));
  listening_ = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int yes = 1;
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  const bool good = listening_ >= 0 && setsockopt(listening_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                    bind(listening_, found->ai_addr, found->ai_addrlen) == 0 && listen(listening_, 128) == 0 &&
                    getsockname(listening_, reinterpret_cast<sockaddr*>(&bound), &length) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!good) return absl::UnavailableError(std::strerror(error));
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return absl::OkStatus();
}

void HttpServer::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  asked_.NotifyAll();
  if (wake_ >= 0) eventfd_write(wake_, 1);
  if (serving_.joinable()) serving_.join();
  if (making_.joinable()) making_.join();
  for (Connection& connection : connections_) connection.over = true;
  CloseWhatIsOver();
  for (int* descriptor : {&listening_, &wake_}) {
    if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
  }
}

void HttpServer::Serve() {
  for (;;) {
    std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {listening_, POLLIN, 0}};
    if (steady_clock::now() < accept_again_) polled[1].events = 0;
    for (const Connection& connection : connections_) {
      const short events = connection.waiting ? short{0} : connection.response.empty() ? short{POLLIN} : short{POLLOUT};
      polled.push_back({connection.descriptor, events, 0});
    }
    poll(polled.data(), polled.size(), static_cast<int>(std::chrono::milliseconds(kAcceptRetry).count()));
    {
      const MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    const steady_clock::time_point now = steady_clock::now();
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = connections_[i];
      const short events = polled[i + 2].revents;
      if (events & (POLLERR | POLLNVAL) || now > connection.deadline) connection.over = true;
      if (events & (POLLIN | POLLHUP) && !connection.waiting && connection.response.empty()) Read(connection);
      if (events & POLLOUT) Send(connection);
    }
    TakeSlowPages();
    CloseWhatIsOver();
    if (polled[1].revents != 0) Accept();
  }
}

void HttpServer::Accept() {
  const int descriptor = accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) {
    accept_again_ = steady_clock::now() + kAcceptRetry;  // there may be no descriptors left
    return;
  }
  if (connections_.size() >= kMaxConnections) {
    connections_.front().over = true;
    CloseWhatIsOver();
  }
  connections_.push_back({.descriptor = descriptor, .deadline = steady_clock::now() + kPatience});
}

void HttpServer::Read(Connection& connection) {
  char bytes[4'096];
  const ssize_t count = recv(connection.descriptor, bytes, sizeof(bytes), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    connection.over = true;
    return;
  }
  connection.request.append(bytes, static_cast<size_t>(count));
  if (absl::StrContains(connection.request, "\r\n\r\n")) {
    Respond(connection);
  } else if (connection.request.size() > kMaxRequest) {
    connection.response = Failure(431);
  }
}

void HttpServer::Respond(Connection& connection) {
  const std::string line = connection.request.substr(0, connection.request.find("\r\n"));
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
    connection.response = Failure(400);
    return;
  }
  const bool head = words[0] == "HEAD";
  if (words[0] != "GET" && !head) {
    connection.response = Failure(405);
    return;
  }
  const auto page = pages_.find(words[1].substr(0, words[1].find('?')));
  if (page == pages_.end()) {
    connection.response = Failure(404);
  } else if (!page->second.slow || head) {
    connection.response = head ? ResponseOf({}, /*with_body=*/false) : ResponseOf(page->second.make());
  } else {
    connection.waiting = true;
    const MutexLock lock(&mutex_);
    wanted_.emplace_back(connection.descriptor, &page->second);
    asked_.NotifyAll();
  }
}

void HttpServer::Send(Connection& connection) {
  const std::string& response = connection.response;
  const ssize_t count =
      send(connection.descriptor, response.data() + connection.sent, response.size() - connection.sent, MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count > 0) connection.sent += static_cast<size_t>(count);
  if (count < 0 || connection.sent == response.size()) connection.over = true;
}

void HttpServer::MakeSlowPages() {
  for (;;) {
    std::vector<std::pair<int, const Page*>> wanted;
    {
      const MutexLock lock(&mutex_);
      while (!stopping_ && wanted_.empty()) asked_.Wait(&mutex_);
      if (stopping_) return;
      wanted.swap(wanted_);
    }
    for (const auto& [descriptor, page] : wanted) {
      std::string response = ResponseOf(page->make());
      const MutexLock lock(&mutex_);
      made_.emplace_back(descriptor, std::move(response));
      eventfd_write(wake_, 1);
    }
  }
}

void HttpServer::TakeSlowPages() {
  eventfd_t ignored = 0;
  eventfd_read(wake_, &ignored);
  const MutexLock lock(&mutex_);
  for (auto& made : std::exchange(made_, {})) {
    const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const Connection& connection) {
      return connection.descriptor == made.first && connection.waiting;
    });
    if (found == connections_.end()) continue;
    found->waiting = false;
    found->response = std::move(made.second);
    found->deadline = steady_clock::now() + kPatience;
  }
}

void HttpServer::CloseWhatIsOver() {
  std::erase_if(connections_, [this](const Connection& connection) {
    if (!connection.over) return false;
    {
      // Its descriptor may be another connection's soon.
      const MutexLock lock(&mutex_);
      std::erase_if(wanted_, [&](const auto& wanted) { return wanted.first == connection.descriptor; });
      std::erase_if(made_, [&](const auto& made) { return made.first == connection.descriptor; });
    }
    close(connection.descriptor);
    return true;
  });
}

}  // namespace egeria::metrics
