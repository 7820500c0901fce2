#ifndef EGERIA_JOBS_SUBMISSION_H_
#define EGERIA_JOBS_SUBMISSION_H_

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "jobs/backend.h"

namespace egeria::jobs {

// Files of a job's output folder: job.json with the submission, log.txt, and exit_code once it has ended.
std::string LogFile(const std::string& output);

// Errors: UNAVAILABLE the folder cannot be written to.
absl::Status WriteFile(const std::string& path, const std::string& text);

absl::Status WriteSubmission(const Submission& submission);

// Errors: NOT_FOUND nothing was submitted to this folder; INVALID_ARGUMENT job.json is damaged.
absl::StatusOr<Submission> ReadSubmission(const std::string& output);

// Says what the exit code of a job's script means.
JobStatus StatusByExitCode(int code);

// The same for the code that the job's script has written to its output folder; nothing where it has written none.
std::optional<JobStatus> StatusByExitCode(const std::string& output);

// Writes the log to `out` and, as long as `running` says so, what is added to it.
absl::Status CopyLog(const std::string& output, const std::function<bool()>& running, std::ostream& out);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_SUBMISSION_H_
