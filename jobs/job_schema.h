#ifndef EGERIA_JOBS_JOB_SCHEMA_H_
#define EGERIA_JOBS_JOB_SCHEMA_H_

#include <string>

namespace egeria::jobs {

// The JSON Schema (draft 2020-12) of the job file, for editors and other checks: docs/reference/job-file.schema.json.
std::string JobFileSchema();

// The reference page of the job file in Markdown: docs/reference/job-file.md.
std::string JobFilePage();

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_JOB_SCHEMA_H_
