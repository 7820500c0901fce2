#ifndef EGERIA_CONTROLLER_CLI_ADMIN_COMMANDS_H_
#define EGERIA_CONTROLLER_CLI_ADMIN_COMMANDS_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// The subcommands that speak to a running controller: list, export, freeze, unfreeze, pause, resume, mode. Each takes
// --controller (or EGERIA_CONTROLLER) or --admin (or EGERIA_ADMIN), and a job by its id, the beginning of its id, or
// its name where only one unfinished job has that name.
void AddAdminCommands(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_ADMIN_COMMANDS_H_
