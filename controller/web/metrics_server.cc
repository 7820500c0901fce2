#include "controller/web/metrics_server.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/metrics/family.h"
#include "controller/web/job_metrics.h"
#include "prometheus/collectable.h"

namespace egeria::controller {
namespace {

class Collector : public prometheus::Collectable {
 public:
  Collector(MetricsServer::Options options, const JobManager* manager)
      : options_(std::move(options)), manager_(manager) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families =
        JobMetrics(manager_->View(), options_.clock(), options_.keep_silent_jobs);
    metrics::Family build = metrics::Family::Gauge("egeria_build_info", "1, labelled with the version.");
    build.Add({{"version", options_.version}}, 1);
    std::move(build).MoveTo(&families);
    for (prometheus::MetricFamily& family : metrics::ProcessMetrics()) families.push_back(std::move(family));
    return families;
  }

 private:
  const MetricsServer::Options options_;
  const JobManager* const manager_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const Options& options, const JobManager* manager) {
  EGERIA_ASSIGN_OR_RETURN(
      auto endpoint, metrics::MetricsEndpoint::Start(options.listen, std::make_shared<Collector>(options, manager)));
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(endpoint)));
}

}  // namespace egeria::controller
