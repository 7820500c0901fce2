#include "controller/cli/bench_command.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/program_path.h"
#include "common/base/status.h"
#include "controller/cli/python_program.h"

namespace egeria::cli {
namespace {

constexpr char kProgram[] = "bench/main.py";

absl::StatusOr<std::string> FindBenchmarks() {
  std::error_code error;
  const char* given = std::getenv("EGERIA_SOURCE");
  if (given != nullptr && given[0] != '\0') {
    const std::filesystem::path program = std::filesystem::path(given) / kProgram;
    if (std::filesystem::exists(program, error)) return program.string();
    return absl::NotFoundError(absl::StrCat("EGERIA_SOURCE is '", given, "', which has no ", kProgram));
  }
  std::vector<std::filesystem::path> folders = {EGERIA_SOURCE_FOLDER};
  for (std::filesystem::path folder = std::filesystem::current_path(error); !folder.empty();
       folder = folder.parent_path()) {
    folders.push_back(folder);
    if (folder == folder.root_path()) break;
  }
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / kProgram, error)) return (folder / kProgram).string();
  }
  return absl::NotFoundError(
      absl::StrCat("the benchmark's tasks are part of egeria's sources and are not installed: "
                   "no ",
                   kProgram,
                   " here; run this in a checkout, or name one in "
                   "EGERIA_SOURCE"));
}

// Returns only if it fails.
absl::Status BecomeBenchmarks(const std::vector<std::string>& arguments) {
  EGERIA_ASSIGN_OR_RETURN(const std::string program, FindBenchmarks());
  EGERIA_ASSIGN_OR_RETURN(const std::string python, FindPythonWithPackage());
  setenv("EGERIA_BIN", OwnFolder().c_str(), 0);  // the controller that belongs to this program, unless one is named
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return BecomePython(python, words);
}

}  // namespace

void AddBenchCommand(CLI::App& app, const Select& select) {
  CLI::App* command = app.add_subcommand("bench", "Train real tasks with and without freezing, and compare them.");
  command->prefix_command();  // all that follows, --help too, is for the Python side
  command->set_help_flag();
  command->callback([command, select] {
    select([arguments = command->remaining()](Streams) { return BecomeBenchmarks(arguments); });
  });
}

}  // namespace egeria::cli
