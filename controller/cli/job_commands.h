#ifndef EGERIA_CONTROLLER_CLI_JOB_COMMANDS_H_
#define EGERIA_CONTROLLER_CLI_JOB_COMMANDS_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// The subcommands that run what a job file describes: compile, submit, status, logs, cancel. Each takes a job file, and
// finds what was submitted in the output folder that it names.
void AddJobCommands(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_JOB_COMMANDS_H_
