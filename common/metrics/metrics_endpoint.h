#ifndef EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_
#define EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace egeria::metrics {

// An HTTP server whose /metrics Prometheus can scrape. Two threads of its own answer.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class MetricsEndpoint {
 public:
  // Serves what `collectable` collects at `listen`, "host:port" (port 0: any free one). "none" gives an
  // endpoint that serves nothing.
  // Errors: INVALID_ARGUMENT a bad address; UNAVAILABLE [CANNOT_LISTEN] it is in use or not this machine's.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen,
                                                                std::shared_ptr<prometheus::Collectable> collectable);
  ~MetricsEndpoint();

  // "http://127.0.0.1:9464/metrics"; empty where nothing is served.
  const std::string& url() const { return url_; }
  void Stop();

 private:
  MetricsEndpoint() = default;

  std::string url_;
  std::shared_ptr<prometheus::Collectable> collectable_;  // the exposer holds it weakly
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_METRICS_ENDPOINT_H_
