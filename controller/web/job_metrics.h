#ifndef EGERIA_CONTROLLER_WEB_JOB_METRICS_H_
#define EGERIA_CONTROLLER_WEB_JOB_METRICS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controller/job/job_view.h"
#include "prometheus/metric_family.h"

namespace egeria::controller {

// The value of the label training_job for each job: its name, or its id where it has none. Where several
// jobs share a name, the running one keeps it bare, or else the one that was active last; the others get the first
// eight characters of their id added. Keys are job ids.
std::map<std::string, std::string> TrainingJobLabels(const std::vector<JobView>& jobs);

// The controller's metrics; docs/reference/metrics.md lists them. Jobs without a stream whose last activity is longer
// ago than `keep_silent_jobs` count in egeria_jobs but have no series of their own.
std::vector<prometheus::MetricFamily> JobMetrics(const ManagerView& view, absl::Duration keep_silent_jobs);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_JOB_METRICS_H_
