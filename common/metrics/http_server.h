#ifndef EGERIA_COMMON_METRICS_HTTP_SERVER_H_
#define EGERIA_COMMON_METRICS_HTTP_SERVER_H_

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

struct MHD_Connection;
struct MHD_Daemon;

namespace egeria::metrics {

// Answers GET requests for a few pages by libmicrohttpd. One thread of it does all reading and writing, so that
// connections which are idle or slow keep nobody waiting; each is closed after ten seconds without a byte. A browser
// that shows a page loads nothing for it from anywhere else, and runs no script but those that are served here.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class HttpServer {
 public:
  struct Answer {
    unsigned status = 200;
    std::string type = "text/plain; charset=utf-8";
    std::string body;
  };
  struct Page {
    // Gets what the request's path has behind the page's own; empty unless the page has others `below` it.
    std::function<Answer(const std::string& rest)> make;
    bool slow = false;   // made on a second thread, so that it may wait for locks: other pages are answered meanwhile
    bool below = false;  // it also answers for every path that begins with its own, of which no page has more
  };

  // `address` has a number for its host. Errors: UNAVAILABLE it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Address& address,
                                                           std::map<std::string, Page> pages);
  ~HttpServer() { Stop(); }

  int port() const { return port_; }
  void Stop();

 private:
  // A request between the calls that libmicrohttpd makes for it.
  struct Request;

  explicit HttpServer(std::map<std::string, Page> pages) : pages_(std::move(pages)) {}
  absl::Status Listen(const rpc::Address& address);
  // The page for a path, and what the path has behind the page's own. Null where there is none.
  const Page* Find(const std::string& path, std::string* rest) const;
  // Begins or ends the answer to a request whose headers are known. Returns an MHD_Result.
  int Answered(MHD_Connection* connection, const char* path, const std::string& method, Request& request);
  void MakeSlowPages();

  const std::map<std::string, Page> pages_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;

  Mutex mutex_;
  CondVar asked_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<MHD_Connection*, Request*>> wanted_ ABSL_GUARDED_BY(mutex_);  // suspended until they are made
  std::thread making_;
};

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_HTTP_SERVER_H_
