#include "deploy/run/programs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace egeria::run {
namespace {

bool IsProgram(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> PathFolders() {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return {};
  return absl::StrSplit(path, ':', absl::SkipEmpty());
}

absl::StatusOr<std::string> FindIn(const std::vector<std::string>& folders, const std::string& name) {
  for (const std::string& folder : folders) {
    std::string path = absl::StrCat(folder, "/", name);
    if (IsProgram(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat(name, " is in none of ", absl::StrJoin(folders, ", ")));
}

}  // namespace

std::string OwnFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

absl::StatusOr<std::string> FindTorchrun() {
  const char* given = std::getenv("EGERIA_TORCHRUN");
  if (given != nullptr && given[0] != '\0') {
    if (IsProgram(given)) return std::string(given);
    return absl::NotFoundError(absl::StrCat("EGERIA_TORCHRUN is '", given, "', which is no program"));
  }
  std::vector<std::string> folders = {OwnFolder()};
  const char* environment = std::getenv("VIRTUAL_ENV");
  if (environment != nullptr && environment[0] != '\0') folders.push_back(absl::StrCat(environment, "/bin"));
  for (std::string& folder : PathFolders()) folders.push_back(std::move(folder));
  folders.push_back(EGERIA_PYTHON_FOLDER);
  absl::StatusOr<std::string> found = FindIn(folders, "torchrun");
  if (found.ok()) return found;
  return absl::NotFoundError(absl::StrCat(found.status().message(),
                                          "; activate the environment that has PyTorch, or name the program in "
                                          "EGERIA_TORCHRUN"));
}

absl::StatusOr<std::string> FindController() {
  std::vector<std::string> folders = {OwnFolder()};
  for (std::string& folder : PathFolders()) folders.push_back(std::move(folder));
  return FindIn(folders, "egeria-controller");
}

}  // namespace egeria::run
