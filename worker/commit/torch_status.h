#ifndef EGERIA_WORKER_COMMIT_TORCH_STATUS_H_
#define EGERIA_WORKER_COMMIT_TORCH_STATUS_H_

#include <exception>
#include <string>

namespace egeria::worker {

// Returns what an exception of torch says, without the stack trace that c10::Error appends.
std::string MessageOf(const std::exception& error);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_TORCH_STATUS_H_
