#ifndef EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_
#define EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/http_server.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace egeria::metrics {

class Health;

// An HTTP server whose /metrics Prometheus can scrape, and where there is a Health, /healthz and /readyz: 200, or 503
// with what is wrong, a line for each part. /readyz is about whether the daemon can serve, /healthz about everything.
// They answer whoever else is connected, and while /metrics waits. Thread-compatible. Stop() is idempotent; the
// destructor calls it.
class MetricsEndpoint {
 public:
  // Serves what `collectable` collects at `listen`, "host:port" (port 0: any free one). "none" gives an
  // endpoint that serves nothing. `health` may be null, and must outlive the endpoint. `others` are served beside it.
  // Errors: INVALID_ARGUMENT a bad address; UNAVAILABLE [CANNOT_LISTEN] it is in use or not this machine's.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen,
                                                                std::shared_ptr<prometheus::Collectable> collectable,
                                                                const Health* health = nullptr,
                                                                std::map<std::string, HttpServer::Page> others = {});
  ~MetricsEndpoint();

  // "http://127.0.0.1:9464/metrics"; empty where nothing is served.
  const std::string& url() const { return url_; }
  void Stop();

 private:
  MetricsEndpoint() = default;

  std::string url_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_
