#ifndef EGERIA_CONTROLLER_CLI_PYTHON_PROGRAM_H_
#define EGERIA_CONTROLLER_CLI_PYTHON_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace egeria::cli {

// The Python that has the package egeria: $EGERIA_PYTHON, or the first python3 of EnvironmentFolders(), the folder of
// the Python which this was built with, and the folders of PATH. In a build tree, where the package is not installed,
// PYTHONPATH is set so that it is found. Errors: NOT_FOUND that says what to do, where there is no Python or it has no
// such package.
absl::StatusOr<std::string> FindPythonWithPackage();

// Becomes `python ARGUMENTS`; returns only if it fails, with INTERNAL.
absl::Status BecomePython(const std::string& python, const std::vector<std::string>& arguments);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_PYTHON_PROGRAM_H_
