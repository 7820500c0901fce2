#ifndef EGERIA_CONTROLLER_WEB_PAGE_H_
#define EGERIA_CONTROLLER_WEB_PAGE_H_

#include <map>
#include <string>

#include "common/metrics/health.h"
#include "common/metrics/http_server.h"
#include "controller/job/job_manager.h"

namespace egeria::controller {

// The page that shows the jobs in a browser, at "/", with the files that it consists of; and below "/api/" what it asks
// for, as JSON: "jobs", "jobs/ID" and "jobs/ID/history". All of it only reads. Each answer is made once a second at
// most, however many look at it. A build without the charts' library has a text at "/" that says so.
// `manager` and `health` must outlive the pages.
std::map<std::string, metrics::HttpServer::Page> PagesOfJobs(const JobManager* manager, const metrics::Health* health,
                                                             const std::string& version);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_PAGE_H_
