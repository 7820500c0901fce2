#ifndef EGERIA_CONTROLLER_CLI_PYTHON_COMMANDS_H_
#define EGERIA_CONTROLLER_CLI_PYTHON_COMMANDS_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// `egeria doctor ...` becomes `python3 -m egeria.doctor ...`, which examines a model that a Python file builds.
// `egeria trial ...` becomes `python3 -m egeria.trial ...`, which trains the first steps with and without freezing.
// `egeria top ...` becomes `python3 -m egeria.monitor.top ...`, which shows a controller's jobs in a terminal.
// They fail with NOT_FOUND where there is no Python that has the package egeria (python_program.h).
void AddPythonCommands(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_PYTHON_COMMANDS_H_
