#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_

#include <vector>

#include "common/metrics/health.h"
#include "prometheus/collectable.h"
#include "worker/cache/daemon/cache_server.h"

namespace egeria::cache {

// The metrics that egeria-cache serves on /metrics; docs/reference/metrics.md lists them. `server` and `health` must
// outlive it. Thread-safe.
class CacheMetrics final : public prometheus::Collectable {
 public:
  CacheMetrics(const CacheServer* server, const metrics::Health* health) : server_(server), health_(health) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const CacheServer* const server_;
  const metrics::Health* const health_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_
