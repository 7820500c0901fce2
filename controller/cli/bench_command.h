#ifndef EGERIA_CONTROLLER_CLI_BENCH_COMMAND_H_
#define EGERIA_CONTROLLER_CLI_BENCH_COMMAND_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// `egeria bench ...`: becomes `python3 SOURCES/bench/main.py ...`, which trains the benchmark's tasks.
// They are part of the sources and are not installed: SOURCES is $EGERIA_SOURCE, or what this was built from, or the
// current folder or one above it. Fails with NOT_FOUND where none of them has the tasks, or where there is no Python
// that has the package egeria (python_program.h).
void AddBenchCommand(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_BENCH_COMMAND_H_
