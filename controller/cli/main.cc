#include <iostream>

#include "controller/cli/admin_commands.h"
#include "controller/cli/bench_command.h"
#include "controller/cli/command.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/python_commands.h"
#include "controller/cli/replay_command.h"

// The program `egeria`. Each subcommand lives in a file of its own and is listed here.
int main(int argc, char** argv) {
  return egeria::cli::Run(argc, argv,
                          {egeria::cli::AddReplayCommand, egeria::cli::AddAdminCommands, egeria::cli::AddPythonCommands,
                           egeria::cli::AddBenchCommand, egeria::cli::AddJobCommands},
                          {std::cin, std::cout, std::cerr});
}
