#ifndef EGERIA_JOBS_BACKEND_H_
#define EGERIA_JOBS_BACKEND_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "jobs/job_file.h"

namespace egeria::jobs {

// This was handed to an engine. It lies in the job's output folder (jobs/submission.h).
struct Submission {
  std::string engine;     // the back end's name
  std::string name;       // the job's name
  std::string id;         // by which the engine knows the job
  std::string submitted;  // when, in UTC
  std::string script;     // the file with what was compiled
  std::string output;     // the job's output folder
  std::string space;      // the namespace, of Kubernetes alone
};

struct JobStatus {
  bool ended = false;
  std::string words;  // such as "running", "finished", "failed with exit code 1"
};

// One engine that runs jobs: it says what a job file becomes there, and starts, watches and stops that. Back ends keep
// nothing in memory. Thread-compatible.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;

  // All that would be run, as a text to be read, kept and changed; the same for the same job.
  // Errors: INVALID_ARGUMENT the job asks for what this engine cannot do; the message begins with the key.
  virtual absl::StatusOr<std::string> Compile(const JobFile& job) const = 0;

  // Runs the compiled text that lies in `submission.script`; returns the job's id.
  // Errors: NOT_FOUND a program of the engine is missing; INTERNAL it failed, with what it said.
  virtual absl::StatusOr<std::string> Submit(const Submission& submission) const = 0;

  virtual absl::StatusOr<JobStatus> Status(const Submission& submission) const = 0;

  // Writes what the job has printed; with `follow` until the job ends, for which this process may become another one.
  virtual absl::Status Logs(const Submission& submission, bool follow, std::ostream& out) const = 0;

  // Returns when the engine has taken the request; the job may take a while to end.
  virtual absl::Status Cancel(const Submission& submission) const = 0;
};

const Backend& LocalBackend();
const Backend& SlurmBackend();
const Backend& KubernetesBackend();

// Errors: INVALID_ARGUMENT naming the back ends that there are.
absl::StatusOr<const Backend*> FindBackend(const std::string& name);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_BACKEND_H_
