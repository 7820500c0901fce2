#ifndef EGERIA_CONTROLLER_WEB_METRICS_SERVER_H_
#define EGERIA_CONTROLLER_WEB_METRICS_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/health.h"
#include "common/metrics/metrics_endpoint.h"
#include "controller/job/job_manager.h"

namespace egeria::controller {

// The controller's /metrics, /healthz, /readyz and page. Thread-compatible. Stop() is idempotent; the destructor calls
// it.
class MetricsServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:9464";  // "none": nothing is served
    absl::Duration keep_silent_jobs = absl::Minutes(15);
    std::string version;
    bool page = true;  // whether the page and what it asks for are served, too
  };

  // `manager` and `health` must outlive the server. Errors: those of metrics::MetricsEndpoint::Start.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const Options& options, const JobManager* manager,
                                                              const metrics::Health* health);

  const std::string& url() const { return endpoint_->url(); }
  void Stop() { endpoint_->Stop(); }

 private:
  explicit MetricsServer(std::unique_ptr<metrics::MetricsEndpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  std::unique_ptr<metrics::MetricsEndpoint> endpoint_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_METRICS_SERVER_H_
