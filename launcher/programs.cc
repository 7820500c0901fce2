#include "launcher/programs.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/program_path.h"

namespace egeria::run {

absl::StatusOr<std::string> FindTorchrun() {
  const char* given = std::getenv("EGERIA_TORCHRUN");
  if (given != nullptr && given[0] != '\0') {
    if (IsProgram(given)) return std::string(given);
    return absl::NotFoundError(absl::StrCat("EGERIA_TORCHRUN is '", given, "', which is no program"));
  }
  std::vector<std::string> folders = EnvironmentFolders();
  for (std::string& folder : PathFolders()) folders.push_back(std::move(folder));
  folders.push_back(EGERIA_PYTHON_FOLDER);
  absl::StatusOr<std::string> found = FindProgram(folders, "torchrun");
  if (found.ok()) return found;
  return absl::NotFoundError(absl::StrCat(found.status().message(),
                                          "; activate the environment that has PyTorch, or name the program in "
                                          "EGERIA_TORCHRUN"));
}

absl::StatusOr<std::string> FindDaemon(const std::string& name) {
  std::vector<std::string> folders = {OwnFolder()};
  for (std::string& folder : PathFolders()) folders.push_back(std::move(folder));
  return FindProgram(folders, name);
}

}  // namespace egeria::run
