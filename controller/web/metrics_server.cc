#include "controller/web/metrics_server.h"

#include <map>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/metrics/family.h"
#include "controller/web/job_metrics.h"
#include "controller/web/page.h"
#include "prometheus/collectable.h"

namespace egeria::controller {
namespace {

class Collector : public prometheus::Collectable {
 public:
  Collector(MetricsServer::Options options, const JobManager* manager, const metrics::Health* health)
      : options_(std::move(options)), manager_(manager), health_(health) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families = JobMetrics(manager_->View(), options_.keep_silent_jobs);
    metrics::Family build = metrics::Family::Gauge("egeria_build_info", "1, labelled with the version.");
    build.Add({{"version", options_.version}}, 1);
    std::move(build).MoveTo(&families);
    metrics::Family healthy = metrics::Family::Gauge("egeria_healthy", "1, or 0 while /healthz says what is wrong.");
    healthy.Add({}, health_->Healthy().ok() ? 1 : 0);
    std::move(healthy).MoveTo(&families);
    for (prometheus::MetricFamily& family : metrics::ProcessMetrics()) families.push_back(std::move(family));
    return families;
  }

 private:
  const MetricsServer::Options options_;
  const JobManager* const manager_;
  const metrics::Health* const health_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const Options& options, const JobManager* manager,
                                                                    const metrics::Health* health) {
  std::map<std::string, metrics::HttpServer::Page> pages;
  if (options.page) pages = PagesOfJobs(manager, health, options.version);
  EGERIA_ASSIGN_OR_RETURN(auto endpoint, metrics::MetricsEndpoint::Start(
                                             options.listen, std::make_shared<Collector>(options, manager, health),
                                             health, std::move(pages)));
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(endpoint)));
}

}  // namespace egeria::controller
