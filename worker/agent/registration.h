#ifndef EGERIA_WORKER_AGENT_REGISTRATION_H_
#define EGERIA_WORKER_AGENT_REGISTRATION_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "egeria/v1/controller.pb.h"
#include "worker/agent/agent.h"

namespace egeria::worker {

// Reads a policy in protobuf's JSON, e.g. {"plasticity": {"window": 5}}. An empty text means the plasticity policy with
// its defaults.
// Errors: INVALID_ARGUMENT that says what is wrong and which policies and constants there are.
absl::StatusOr<v1::PolicyConfig> ParsePolicy(absl::string_view json);

// Makes the registration of `job` as it is at its start. Graphs that would make it larger than a message may be are
// left out, the largest first, and the reason is given in their place.
// Errors: INVALID_ARGUMENT no controller would take the job; those of ParsePolicy. None takes an id that is no UUID, a
// graph beside a local reference, or a rank, world size, number of modules, name, size or prefix out of bounds.
absl::StatusOr<v1::RegisterJobRequest> MakeRegistration(const JobDescription& job);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_REGISTRATION_H_
