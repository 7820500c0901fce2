#ifndef EGERIA_COMMON_BASE_PROGRAM_PATH_H_
#define EGERIA_COMMON_BASE_PROGRAM_PATH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria {

// The folder that this program's file lies in.
std::string OwnFolder();

// Where programs of the Python environment in use are: this program's folder, the folder `bin` of the environment in
// whose packages a wheel has put this program, and $VIRTUAL_ENV/bin.
std::vector<std::string> EnvironmentFolders();

// The folders of PATH, in order.
std::vector<std::string> PathFolders();

// Whether `path` is a file that can be executed.
bool IsProgram(const std::string& path);

// The path of the first program `name` in `folders`. Errors: NOT_FOUND that says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::vector<std::string>& folders, const std::string& name);

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_PROGRAM_PATH_H_
