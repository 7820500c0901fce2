#ifndef EGERIA_COMMON_METRICS_FAMILY_H_
#define EGERIA_COMMON_METRICS_FAMILY_H_

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"

namespace egeria::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

// One metric with the series that were added to it, for a Collectable that makes its metrics when it is
// asked. Names follow Prometheus' rules: base units, and _total for what only rises. Thread-compatible.
//
// Example:
//   Family readings = Family::Counter("egeria_readings_total", "Plasticity readings that counted.");
//   readings.Add({{"training_job", "resnet"}}, 17);
//   readings.MoveTo(&families);
class Family {
 public:
  static Family Counter(std::string name, std::string help);
  static Family Gauge(std::string name, std::string help);

  // Each combination of labels may be added once.
  void Add(const Labels& labels, double value);

  // A family without series is left out.
  void MoveTo(std::vector<prometheus::MetricFamily>* families) &&;

 private:
  Family(std::string name, std::string help, prometheus::MetricType type);
  prometheus::MetricFamily family_;
};

// This process's memory, CPU time, threads and start, named as every Prometheus client library names them.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_FAMILY_H_
