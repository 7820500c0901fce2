#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_

#include <vector>

#include "prometheus/collectable.h"
#include "worker/cache/daemon/cache_server.h"

namespace egeria::cache {

// The metrics that egeria-cache serves on /metrics; docs/metrics.md lists them. `server` must outlive it. Thread-safe.
class CacheMetrics final : public prometheus::Collectable {
 public:
  explicit CacheMetrics(const CacheServer* server) : server_(server) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const CacheServer* const server_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_METRICS_H_
