#ifndef EGERIA_COMMON_METRICS_HTTP_SERVER_H_
#define EGERIA_COMMON_METRICS_HTTP_SERVER_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/thread/mutex.h"

namespace egeria::metrics {

// Answers GET requests for a few pages, one request a connection. One thread does all reading and writing, so that
// connections which are idle or slow keep nobody waiting: each is closed after ten seconds, and the oldest one where
// there are more than 256. Thread-compatible. Stop() is idempotent; the destructor calls it.
class HttpServer {
 public:
  struct Answer {
    int status = 200;
    std::string type = "text/plain; charset=utf-8";
    std::string body;
  };
  struct Page {
    std::function<Answer()> make;
    bool slow = false;  // made on a second thread, so that it may wait for locks: other pages are answered meanwhile
  };

  // `address` has a number for its host. Errors: UNAVAILABLE it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Address& address,
                                                           std::map<std::string, Page> pages);
  ~HttpServer() { Stop(); }

  int port() const { return port_; }
  void Stop();

 private:
  struct Connection {
    int descriptor = -1;
    std::chrono::steady_clock::time_point deadline;
    std::string request;
    std::string response;  // not empty once it is known
    size_t sent = 0;
    bool waiting = false;  // for the second thread
    bool over = false;
  };

  explicit HttpServer(std::map<std::string, Page> pages) : pages_(std::move(pages)) {}
  absl::Status Listen(const rpc::Address& address);
  void Serve();
  void MakeSlowPages();
  void Accept();
  void Read(Connection& connection);
  void Respond(Connection& connection);
  void Send(Connection& connection);
  // Gives the pages that the second thread has made to those who wait for them.
  void TakeSlowPages();
  void CloseWhatIsOver();

  const std::map<std::string, Page> pages_;
  int listening_ = -1;
  int wake_ = -1;  // an event descriptor
  int port_ = 0;
  std::deque<Connection> connections_;  // oldest first; the serving thread's
  std::chrono::steady_clock::time_point accept_again_;

  Mutex mutex_;
  CondVar asked_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<int, const Page*>> wanted_ ABSL_GUARDED_BY(mutex_);  // by descriptor
  std::vector<std::pair<int, std::string>> made_ ABSL_GUARDED_BY(mutex_);    // responses
  std::thread serving_, making_;
};

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_HTTP_SERVER_H_
