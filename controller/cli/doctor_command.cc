#include "controller/cli/doctor_command.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "common/base/status.h"
#include "controller/cli/python_program.h"

namespace egeria::cli {
namespace {

// Returns only if it fails.
absl::Status BecomeDoctor(const std::vector<std::string>& arguments) {
  EGERIA_ASSIGN_OR_RETURN(const std::string python, FindPythonWithPackage());
  std::vector<std::string> words = {"-m", "egeria.doctor"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return BecomePython(python, words);
}

}  // namespace

void AddDoctorCommand(CLI::App& app, const Select& select) {
  CLI::App* command = app.add_subcommand("doctor", "Says what Egeria would make of a model");
  command->prefix_command();  // all that follows, --help too, is for the Python side
  command->set_help_flag();
  command->callback(
      [command, select] { select([arguments = command->remaining()](Streams) { return BecomeDoctor(arguments); }); });
}

}  // namespace egeria::cli
