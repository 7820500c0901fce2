#ifndef EGERIA_CONTROLLER_JOB_REGISTRAR_H_
#define EGERIA_CONTROLLER_JOB_REGISTRAR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "controller/job/effects.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// The graphs that a registration brings, module by module, for the reference engine.
struct RegisteredGraphs {
  explicit RegisteredGraphs(const v1::RegisterJobRequest& request);

  // What is known of each module once the engine has answered with `accepted`.
  std::vector<absl::Status> StatusAfter(std::vector<absl::Status> accepted) const;

  std::vector<std::optional<graph::ModuleGraph>> graphs;  // empty where there is none that can be read
  std::vector<absl::Status> form;                         // why a graph is not there
  std::vector<bool> local;                                // whether the worker evaluates the module itself
};

// Warns where the job's policy cannot save as much as its budget asks for.
void WarnIfBudgetIsOutOfReach(const v1::RegisterJobRequest& registration);

// Registers jobs and their generations. Thread-compatible.
class Registrar {
 public:
  // All of them must outlive the registrar.
  Registrar(const JobManagerOptions* options, JobTable* table, FactWriter* facts)
      : options_(options), table_(table), facts_(facts) {}

  // Admits a job that is new, and renews one that is known. `policy` is the request's with all its constants.
  // Errors: those of RegisterJob in controller.proto, for a request of valid form.
  absl::StatusOr<Job*> Register(const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy,
                                Effects& effects);
  // Books what the engine says of the graphs.
  void BookGraphs(Job& job, uint64_t fingerprint, std::vector<absl::Status> module_status, std::vector<bool> local,
                  Effects& effects);
  v1::RegisterJobResponse ResponseFor(const Job& job) const;

 private:
  absl::StatusOr<Job*> Admit(const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy);
  absl::Status Renew(Job& job, const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy, Effects& effects);
  // Books that a generation begins, or that a rank of this one has applied a plan that the journal does not know.
  absl::Status StartGeneration(Job& job, const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy);

  const JobManagerOptions* const options_;
  JobTable* const table_;
  FactWriter* const facts_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_REGISTRAR_H_
