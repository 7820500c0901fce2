#ifndef EGERIA_CONTROLLER_JOB_REGISTRAR_H_
#define EGERIA_CONTROLLER_JOB_REGISTRAR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread/mutex.h"
#include "controller/job/ownership.h"
#include "controller/job/shared_jobs.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// Registers jobs and their generations, and gives their graphs to the reference engine. Thread-safe.
class Registrar {
 public:
  explicit Registrar(SharedJobs* jobs) : jobs_(jobs) {}

  // Admits a job that is new, and renews one that is known. Errors: those of RegisterJob in controller.proto.
  absl::StatusOr<v1::RegisterJobResponse> Register(const v1::RegisterJobRequest& request,
                                                   const rpc::Peer& caller = ThisProcess())
      ABSL_LOCKS_EXCLUDED(jobs_->mutex);

 private:
  // All take a request that has all constants of its policy, no graphs and no secret.
  absl::StatusOr<Job*> Admit(const v1::RegisterJobRequest& request, const Ownership& ownership, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_->mutex);
  absl::Status Renew(Job& job, const v1::RegisterJobRequest& request, const std::string& secret_hash, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_->mutex);
  // Books that a generation begins, or that a rank of this one has applied a plan that the journal does not know.
  absl::Status StartGeneration(Job& job, const v1::RegisterJobRequest& request, const std::string& secret_hash)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_->mutex);
  // The bytes of graphs that the job may have.
  size_t GraphBytesFor(const JobId& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_->mutex);
  // Gives the graphs to the engine and books what it says of them.
  void TakeGraphs(const v1::RegisterJobRequest& request, int64_t generation, uint64_t fingerprint)
      ABSL_LOCKS_EXCLUDED(jobs_->mutex);

  SharedJobs* const jobs_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_REGISTRAR_H_
