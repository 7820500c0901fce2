#ifndef EGERIA_WORKER_AGENT_RETRY_H_
#define EGERIA_WORKER_AGENT_RETRY_H_

#include <string>

#include "absl/status/status.h"

namespace egeria::worker {

// The agent does one of these after a call to the controller has failed.
enum class Retry {
  kSoon,    // the controller is away, or does not know the job yet: connect and register again
  kSlowly,  // it may take long, and asking often would not help: another process holds this rank, the
            // controller is full, something else listens at its address
  kNever,   // asking again gets the same answer: what was registered is wrong, or the job has moved on
};
Retry RetryAfter(const absl::Status& status);

// One sentence that tells a user what the failure means for the training and what can be done about it.
std::string Advice(const absl::Status& status);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_RETRY_H_
