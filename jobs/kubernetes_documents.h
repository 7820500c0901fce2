#ifndef EGERIA_JOBS_KUBERNETES_DOCUMENTS_H_
#define EGERIA_JOBS_KUBERNETES_DOCUMENTS_H_

#include <string>

#include "jobs/job_file.h"
#include "nlohmann/json.hpp"

namespace egeria::jobs {

using Document = nlohmann::ordered_json;

// A document as YAML. Every text is in quotes but for those of several lines, which are blocks.
std::string ToYaml(const Document& document);

// The name of the job's own controller, and of all that belongs to it.
std::string ControllerName(const JobFile& job);
// The address by which the training finds its controller; "none" where it trains without.
std::string ControllerAddress(const JobFile& job);

Document ControllerClaim(const JobFile& job);
Document ControllerService(const JobFile& job);
Document ControllerDeployment(const JobFile& job);

// The training, as TrainJob or PyTorchJob; `script` is what each of its pods runs.
Document TrainJob(const JobFile& job, const std::string& script);
Document PyTorchJob(const JobFile& job, const std::string& script);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_KUBERNETES_DOCUMENTS_H_
