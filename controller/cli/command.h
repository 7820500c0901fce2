#ifndef EGERIA_CONTROLLER_CLI_COMMAND_H_
#define EGERIA_CONTROLLER_CLI_COMMAND_H_

#include <functional>
#include <istream>
#include <ostream>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace egeria::cli {

// A subcommand reads and writes these streams; tests put strings there.
struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

// Given by a subcommand to AddTo (below): does the work. The status decides the exit code.
using Action = std::function<absl::Status(Streams)>;

// Adds one or more subcommands with their flags to the program. Each has a CLI11 callback that hands its
// Action to `select`, as in
//
//   auto flags = std::make_shared<Flags>();
//   CLI::App* command = app.add_subcommand("replay", "...");
//   command->add_option("--window", flags->window, "...");
//   command->callback([flags, select] { select([flags](Streams streams) { return Replay(*flags, streams); }); });
using Select = std::function<void(Action)>;
using AddCommands = void (*)(CLI::App& app, const Select& select);

// Runs the program with these subcommands, of which the command line names one. Errors go to streams.err.
// Returns the exit code: 0; 2 for a bad command line or bad input (INVALID_ARGUMENT); 1 for anything else.
int Run(int argc, const char* const* argv, const std::vector<AddCommands>& commands, Streams streams);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_COMMAND_H_
