#ifndef EGERIA_LAUNCHER_ARGUMENTS_H_
#define EGERIA_LAUNCHER_ARGUMENTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace egeria::run {

// The command line of egeria-run, taken apart. Its own options come first and begin with --egeria-; from the
// first argument that does not, all belong to torchrun.
struct Arguments {
  bool help = false;  // given as the first of torchrun's arguments, as is --version
  bool version = false;
  std::string controller;  // --egeria-controller, else EGERIA_CONTROLLER: an address, "none", or empty: start one
  // --egeria-cache, else EGERIA_CACHE: an address, a folder with an absolute path, or "none" or ""; not given: the
  // default folder.
  std::optional<std::string> cache;
  // --egeria-beside: serve the process that has started this one, and run nothing. The folder is the controller's, and
  // goes at the end.
  std::string beside;
  std::string job_id;     // --egeria-job-id, else EGERIA_JOB_ID; empty: a new one
  std::string name;       // --egeria-name
  std::string budget;     // --egeria-budget; "" is none
  std::string config;     // --egeria-config; this and the next three are for the controller that is started
  std::string state_dir;  // --egeria-state-dir; empty: a temporary one
  std::string metrics;    // --egeria-metrics
  absl::Duration ready_timeout = absl::Seconds(10);  // --egeria-ready-timeout, in seconds
  std::vector<std::string> torchrun;                 // untouched
};

// Errors: INVALID_ARGUMENT for an unknown --egeria- option, a missing or wrong value, and nothing to run.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments);

const char* HelpText();

// The options of egeria-run that stand among torchrun's arguments, before a "--": probably a mistake.
std::vector<std::string> MisplacedOptions(const std::vector<std::string>& torchrun);

// True if torchrun is to start a program instead of a Python script.
bool RunsProgram(const std::vector<std::string>& torchrun);
// True if --nnodes asks for more than one node.
bool SpansNodes(const std::vector<std::string>& torchrun);

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_ARGUMENTS_H_
