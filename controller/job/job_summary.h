#ifndef EGERIA_CONTROLLER_JOB_JOB_SUMMARY_H_
#define EGERIA_CONTROLLER_JOB_JOB_SUMMARY_H_

#include <vector>

#include "controller/job/job.h"
#include "controller/job/job_view.h"
#include "egeria/v1/admin.pb.h"

// What operators and metrics are shown of a job. Pure.
namespace egeria::controller {

v1::JobSummary Summarize(const Job& job);

// The job with its counters, for metrics.
JobView ViewOf(const Job& job);

// The job's header, and everything that its policy saw and decided, in order.
std::vector<v1::ExportRecord> ExportOf(const Job& job);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_SUMMARY_H_
