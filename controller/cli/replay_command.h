#ifndef EGERIA_CONTROLLER_CLI_REPLAY_COMMAND_H_
#define EGERIA_CONTROLLER_CLI_REPLAY_COMMAND_H_

#include "controller/cli/command.h"

namespace egeria::cli {

// `egeria replay FILE`: feeds a recording (see controller/replay/replay.h) to a policy and prints what it
// would have decided, one JSON object a decision. Remarks go to the error stream.
void AddReplayCommand(CLI::App& app, const Select& select);

}  // namespace egeria::cli

#endif  // EGERIA_CONTROLLER_CLI_REPLAY_COMMAND_H_
