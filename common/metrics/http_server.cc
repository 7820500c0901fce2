#include "common/metrics/http_server.h"

#include <microhttpd.h>
#include <netdb.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/thread/thread.h"

namespace egeria::metrics {
namespace {

constexpr unsigned kMaxConnections = 4'096;
constexpr size_t kBytesOfAConnection = 16'384;  // its request, its response's header
constexpr unsigned kPatienceSeconds = 10;

// Every answer has these headers. A browser keeps to them, whatever names of strangers the answer has.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {MHD_HTTP_HEADER_CONNECTION, "close"},
    {MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"},
    {"Content-Security-Policy",
     "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"},
};

MHD_Result Send(MHD_Connection* connection, const HttpServer::Answer& answer) {
  MHD_Response* response =
      MHD_create_response_from_buffer(answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  const absl::Cleanup destroy = [response] { MHD_destroy_response(response); };
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type.c_str());
  for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
  return MHD_queue_response(connection, answer.status, response);
}

HttpServer::Answer Failure(unsigned status) {
  return {.status = status, .body = absl::StrCat(MHD_get_reason_phrase_for(status), "\n")};
}

}  // namespace

struct HttpServer::Request {
  const Page* page = nullptr;
  std::string rest;  // the path behind the page's own
  std::optional<Answer> answer;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const rpc::Address& address,
                                                              std::map<std::string, Page> pages) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages)));
  absl::Status listens;
  // The library's thread has the signal mask of the one that starts it.
  StartThread("http", [&] { listens = server->Listen(address); }).join();
  EGERIA_RETURN_IF_ERROR(listens);
  server->making_ = StartThread("http-slow", [raw = server.get()] { raw->MakeSlowPages(); });
  return server;
}

absl::Status HttpServer::Listen(const rpc::Address& address) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const int resolved = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (resolved != 0) return absl::UnavailableError(gai_strerror(resolved));
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
  if (found->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
  const MHD_AccessHandlerCallback answer = [](void* self, MHD_Connection* connection, const char* path,
                                              const char* method, const char* /*version*/, const char* /*upload*/,
                                              size_t* /*upload_size*/, void** request) {
    if (*request == nullptr) *request = new Request();
    return static_cast<MHD_Result>(
        static_cast<HttpServer*>(self)->Answered(connection, path, method, *static_cast<Request*>(*request)));
  };
  const MHD_RequestCompletedCallback forget = [](void* /*self*/, MHD_Connection* /*connection*/, void** request,
                                                 MHD_RequestTerminationCode /*why*/) {
    delete static_cast<Request*>(std::exchange(*request, nullptr));
  };
  daemon_ = MHD_start_daemon(flags, address.port, nullptr, nullptr, answer, this,      //
                             MHD_OPTION_NOTIFY_COMPLETED, forget, nullptr,             //
                             MHD_OPTION_SOCK_ADDR, found->ai_addr,                     //
                             MHD_OPTION_CONNECTION_LIMIT, kMaxConnections,             //
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, kBytesOfAConnection,  //
                             MHD_OPTION_CONNECTION_TIMEOUT, kPatienceSeconds, MHD_OPTION_END);
  if (daemon_ == nullptr) return absl::UnavailableError(std::strerror(errno));
  port_ = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT)->port;
  return absl::OkStatus();
}

void HttpServer::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  asked_.NotifyAll();
  if (making_.joinable()) making_.join();
  if (daemon_ == nullptr) return;
  MHD_stop_daemon(std::exchange(daemon_, nullptr));
}

const HttpServer::Page* HttpServer::Find(const std::string& path, std::string* rest) const {
  if (const auto page = pages_.find(path); page != pages_.end()) return &page->second;
  const Page* found = nullptr;
  for (const auto& [own, page] : pages_) {  // in order, so that the last one that fits is the longest
    if (!page.below || !absl::StartsWith(path, own)) continue;
    *rest = path.substr(own.size());
    found = &page;
  }
  return found;
}

int HttpServer::Answered(MHD_Connection* connection, const char* path, const std::string& method, Request& request) {
  if (request.answer.has_value()) return Send(connection, *request.answer);
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
    return Send(connection, Failure(MHD_HTTP_METHOD_NOT_ALLOWED));
  }
  request.page = Find(path, &request.rest);
  if (request.page == nullptr) return Send(connection, Failure(MHD_HTTP_NOT_FOUND));
  if (method == MHD_HTTP_METHOD_HEAD) return Send(connection, {});
  if (!request.page->slow) return Send(connection, request.page->make(request.rest));
  const MutexLock lock(&mutex_);
  if (stopping_) return Send(connection, Failure(MHD_HTTP_SERVICE_UNAVAILABLE));
  MHD_suspend_connection(connection);
  wanted_.emplace_back(connection, &request);
  asked_.NotifyAll();
  return MHD_YES;
}

void HttpServer::MakeSlowPages() {
  for (bool stopping = false; !stopping;) {
    std::vector<std::pair<MHD_Connection*, Request*>> wanted;
    {
      const MutexLock lock(&mutex_);
      while (!stopping_ && wanted_.empty()) asked_.Wait(&mutex_);
      stopping = stopping_;
      wanted.swap(wanted_);
    }
    for (const auto& [connection, request] : wanted) {
      request->answer = stopping ? Failure(MHD_HTTP_SERVICE_UNAVAILABLE) : request->page->make(request->rest);
      MHD_resume_connection(connection);
    }
  }
}

}  // namespace egeria::metrics
