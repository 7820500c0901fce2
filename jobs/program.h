#ifndef EGERIA_JOBS_PROGRAM_H_
#define EGERIA_JOBS_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace egeria::jobs {

// Runs a program of PATH to its end and returns what it wrote to standard output.
// Errors: NOT_FOUND it cannot be started; INTERNAL it failed, with what it wrote to either stream.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command);

// Becomes a program of PATH; returns only if that fails, with NOT_FOUND.
absl::Status Become(const std::vector<std::string>& command);

// Starts a program of PATH in a session of its own, whose output is appended to `log`; it outlives this process.
// Errors: NOT_FOUND it cannot be started.
absl::StatusOr<pid_t> StartDetached(const std::vector<std::string>& command, const std::string& log);

// When the process started, in clock ticks since the machine did; 0 where there is none, or it is a zombie.
// A process id together with this belongs to one process only.
unsigned long long StartTimeOf(pid_t pid);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_PROGRAM_H_
