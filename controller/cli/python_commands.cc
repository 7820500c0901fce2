#include "controller/cli/python_commands.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "common/base/status.h"
#include "controller/cli/python_program.h"

namespace egeria::cli {
namespace {

// Returns only if it fails.
absl::Status BecomeModule(const std::string& module, const std::vector<std::string>& arguments) {
  EGERIA_ASSIGN_OR_RETURN(const std::string python, FindPythonWithPackage());
  std::vector<std::string> words = {"-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return BecomePython(python, words);
}

void Add(CLI::App& app, const Select& select, const char* name, const char* help, const std::string& module) {
  CLI::App* command = app.add_subcommand(name, help);
  command->prefix_command();  // all that follows, --help too, is for the Python side
  command->set_help_flag();
  command->callback([command, select, module] {
    select([module, arguments = command->remaining()](Streams) { return BecomeModule(module, arguments); });
  });
}

}  // namespace

void AddPythonCommands(CLI::App& app, const Select& select) {
  Add(app, select, "doctor", "Say what Egeria would make of a model.", "egeria.doctor");
  Add(app, select, "trial", "Train the first steps with and without freezing.", "egeria.trial");
  Add(app, select, "top", "Show a controller's jobs in this terminal.", "egeria.monitor.top");
}

}  // namespace egeria::cli
