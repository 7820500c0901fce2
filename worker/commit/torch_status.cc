#include "worker/commit/torch_status.h"

#include "c10/util/Exception.h"

namespace egeria::worker {

std::string MessageOf(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return torch_error->what_without_backtrace();
  }
  return error.what();
}

}  // namespace egeria::worker
