#ifndef EGERIA_CONTROLLER_WEB_JOB_JSON_H_
#define EGERIA_CONTROLLER_WEB_JOB_JSON_H_

#include <string>

#include "controller/job/job_view.h"
#include "controller/web/job_history.h"

// These functions write what the controller's page (docs/guides/monitoring.md) shows as JSON. Numbers are those
// of /metrics. Pure.
namespace egeria::controller {

// The jobs: those that run first, then by their last activity, at most kListedJobs of them; and what is wrong with the
// controller, empty where nothing is.
constexpr size_t kListedJobs = 500;
std::string JobsJson(const ManagerView& view, const std::string& version, const std::string& trouble);

// One job as it is now.
std::string JobJson(const JobDetail& detail);

// The history of that job.
std::string HistoryJson(const JobDetail& detail, const JobHistory& history);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_JOB_JSON_H_
