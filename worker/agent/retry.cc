#include "worker/agent/retry.h"

#include "absl/strings/match.h"
#include "common/rpc/grpc_status.h"

namespace egeria::worker {

Retry RetryAfter(const absl::Status& status) {
  const absl::string_view name = rpc::ErrorName(status);
  if (name == "STALE_GENERATION" || name == "JOB_CONFLICT" || absl::StartsWith(name, "BAD_")) return Retry::kNever;
  if (name == "RANK_CONFLICT" || name == "TOO_MANY_JOBS" || name == "STALE_JOURNAL") return Retry::kSlowly;
  switch (status.code()) {
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied: return Retry::kSlowly;
    default: return Retry::kSoon;
  }
}

std::string Advice(const absl::Status& status) {
  const absl::string_view name = rpc::ErrorName(status);
  if (name == "STALE_GENERATION") {
    return "a newer restart of this job has registered; if this process is not a leftover, give the job an id of "
           "its own (EGERIA_JOB_ID) or a higher generation";
  }
  if (name == "STALE_JOURNAL") return "a controller with an older journal answers; it is tried again now and then";
  if (name == "JOB_CONFLICT") {
    return "another job with other layer modules or another number of ranks uses this id; give this job an id of its "
           "own (EGERIA_JOB_ID), or leave it to egeria-run";
  }
  if (name == "BAD_POLICY") {
    return "correct the policy and start the job again; docs/reference/policies.md lists the constants";
  }
  if (absl::StartsWith(name, "BAD_")) {
    return "the controller cannot use what this process says; compare their versions (--version)";
  }
  if (name == "RANK_CONFLICT") {
    return "another process is connected as this rank of this job; it is tried again now and then. If both are meant "
           "to run, give them job ids of their own (EGERIA_JOB_ID)";
  }
  if (name == "NOT_THE_OWNER") {
    return "give this job an id of its own (EGERIA_JOB_ID), or if it is the same job the same secret "
           "(EGERIA_JOB_SECRET); it is tried again now and then";
  }
  if (name == "TOO_MANY_JOBS") return "the controller is full; it is tried again now and then";
  if (status.code() == absl::StatusCode::kUnimplemented) {
    return "the program at this address is not an Egeria controller, or an older one; it is tried again now and "
           "then";
  }
  return "it is tried again until it answers";
}

}  // namespace egeria::worker
