#include "common/base/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace egeria {

std::string OwnFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

std::vector<std::string> EnvironmentFolders() {
  const std::string own = OwnFolder();
  std::vector<std::string> folders = {own};
  // There auditwheel puts the programs of a wheel that carries its libraries.
  if (absl::EndsWith(own, "-packages/egeria.scripts")) {
    folders.push_back((std::filesystem::path(own) / "../../../../bin").lexically_normal().string());
  }
  const char* environment = std::getenv("VIRTUAL_ENV");
  if (environment != nullptr && environment[0] != '\0') folders.push_back(absl::StrCat(environment, "/bin"));
  return folders;
}

std::vector<std::string> PathFolders() {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return {};
  return absl::StrSplit(path, ':', absl::SkipEmpty());
}

bool IsProgram(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

absl::StatusOr<std::string> FindProgram(const std::vector<std::string>& folders, const std::string& name) {
  for (const std::string& folder : folders) {
    std::string path = absl::StrCat(folder, "/", name);
    if (IsProgram(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat(name, " is in none of ", absl::StrJoin(folders, ", ")));
}

}  // namespace egeria
