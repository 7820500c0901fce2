#ifndef EGERIA_CONTROLLER_WEB_JOB_WORDS_H_
#define EGERIA_CONTROLLER_WEB_JOB_WORDS_H_

#include <string>
#include <vector>

#include "controller/job/job_view.h"

// These functions say in sentences what a person should know of a job. The page and `egeria top` show them. Pure.
namespace egeria::controller {

// Returns at least one sentence, on what is in the way of the job, or that nothing is.
std::vector<std::string> WordsOnJob(const JobView& view);

// Returns sentences on what the cache of frozen activations does for rank 0, and why.
std::vector<std::string> WordsOnCache(const JobView& view);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_JOB_WORDS_H_
