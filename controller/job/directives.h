#ifndef EGERIA_CONTROLLER_JOB_DIRECTIVES_H_
#define EGERIA_CONTROLLER_JOB_DIRECTIVES_H_

#include "controller/job/effects.h"
#include "controller/job/job.h"
#include "controller/job/job_manager_options.h"
#include "egeria/v1/controller.pb.h"

// The controller's wishes for a job's ranks.
namespace egeria::controller {

// Brings the standing requests in line with what the job's policy wants now, and tells the ranks of any change. Call it
// after every change of the state or the graphs that a request depends on.
void RefreshRequests(Job& job, const JobManagerOptions& options, Effects& effects);

// The rank's directive: the plans that it does not know, and for the sampling rank the requests.
v1::Directive DirectiveOf(const Job& job, int number, const Rank& rank, const JobManagerOptions& options);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_DIRECTIVES_H_
