#include "controller/cli/python_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/program_path.h"
#include "common/base/status.h"

namespace egeria::cli {
namespace {

absl::StatusOr<std::string> FindPython() {
  const char* given = std::getenv("EGERIA_PYTHON");
  if (given != nullptr && given[0] != '\0') {
    if (IsProgram(given)) return std::string(given);
    return absl::NotFoundError(absl::StrCat("EGERIA_PYTHON is '", given, "', which is no program"));
  }
  std::vector<std::string> folders = EnvironmentFolders();
  folders.push_back(EGERIA_PYTHON_FOLDER);  // before PATH, where every system has a Python without the package
  for (std::string& folder : PathFolders()) folders.push_back(std::move(folder));
  absl::StatusOr<std::string> found = FindProgram(folders, "python3");
  if (found.ok()) return found;
  return absl::NotFoundError(absl::StrCat(found.status().message(),
                                          "; activate the environment that has the package egeria, or name its "
                                          "Python in EGERIA_PYTHON"));
}

// In a build tree the package is not installed: it lies beside the folder of the programs.
void FindPackageInBuildTree() {
  const std::string package_folder = absl::StrCat(OwnFolder(), "/../python");
  std::error_code error;
  if (!std::filesystem::exists(absl::StrCat(package_folder, "/egeria/_version.py"), error)) return;
  const char* path = std::getenv("PYTHONPATH");
  const bool set = path != nullptr && path[0] != '\0';
  setenv("PYTHONPATH", (set ? absl::StrCat(package_folder, ":", path) : package_folder).c_str(), 1);
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Whether this Python can find the package, without loading it.
bool HasPackage(const std::string& python) {
  std::vector<std::string> words = {python, "-c",
                                    "import importlib.util, sys; sys.exit(importlib.util.find_spec('egeria') is None)"};
  pid_t pid = 0;
  if (posix_spawn(&pid, python.c_str(), nullptr, nullptr, Pointers(words).data(), environ) != 0) return false;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

absl::StatusOr<std::string> FindPythonWithPackage() {
  EGERIA_ASSIGN_OR_RETURN(std::string python, FindPython());
  FindPackageInBuildTree();
  if (!HasPackage(python)) {
    return absl::NotFoundError(absl::StrCat(python,
                                            " has no package egeria: activate the environment that it is "
                                            "installed in, name its Python in EGERIA_PYTHON, or install it with "
                                            "`pip install .` in egeria's source folder"));
  }
  return python;
}

absl::Status BecomePython(const std::string& python, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python};
  words.insert(words.end(), arguments.begin(), arguments.end());
  execv(python.c_str(), Pointers(words).data());
  return absl::InternalError(absl::StrCat("cannot start ", python, ": ", std::strerror(errno)));
}

}  // namespace egeria::cli
