#ifndef EGERIA_LAUNCHER_PROGRAMS_H_
#define EGERIA_LAUNCHER_PROGRAMS_H_

#include <string>

#include "absl/status/statusor.h"

namespace egeria::run {

// The path of torchrun: $EGERIA_TORCHRUN, or the first that can be executed of EnvironmentFolders(), the folders of
// PATH and that of the Python which this was built with.
// Errors: NOT_FOUND that says where it was looked for and what to do.
absl::StatusOr<std::string> FindTorchrun();

// The path of one of Egeria's daemons: in this program's folder, or in PATH. Errors: NOT_FOUND.
absl::StatusOr<std::string> FindDaemon(const std::string& name);

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_PROGRAMS_H_
