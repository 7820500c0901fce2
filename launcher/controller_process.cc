#include "launcher/controller_process.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "launcher/programs.h"

namespace egeria::run {
namespace {

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] != '\0';
}

std::vector<std::string> Command(const std::string& program, const Arguments& arguments, const std::string& folder) {
  const std::string state = arguments.state_dir.empty() ? absl::StrCat(folder, "/state") : arguments.state_dir;
  std::vector<std::string> command = {program, "--listen", absl::StrCat("unix:", folder, "/controller.sock"),
                                      "--state-dir", state};
  if (!arguments.config.empty()) command.insert(command.end(), {"--config", arguments.config});
  // Its defaults are a daemon's: two jobs on one machine would want the same port, and its log is ours.
  const bool free = arguments.config.empty();
  if (!arguments.metrics.empty()) {
    command.insert(command.end(), {"--metrics-listen", arguments.metrics});
  } else if (free && !IsSet("EGERIA_CONTROLLER_METRICS_LISTEN")) {
    command.insert(command.end(), {"--metrics-listen", "none"});
  }
  if (free && !IsSet("EGERIA_CONTROLLER_LOG_LEVEL")) command.insert(command.end(), {"--log-level", "warning"});
  return command;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControllerProcess>> ControllerProcess::Start(const Arguments& arguments,
                                                                            const Signals& signals) {
  EGERIA_ASSIGN_OR_RETURN(const std::string program, FindDaemon("egeria-controller"));
  EGERIA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make());
  Subprocess::Options options;
  options.command = Command(program, arguments, folder.path());
  options.own_group = true;
  EGERIA_ASSIGN_OR_RETURN(DaemonProcess process, DaemonProcess::Start(std::move(options), signals));
  return std::unique_ptr<ControllerProcess>(new ControllerProcess(std::move(folder), std::move(process)));
}

}  // namespace egeria::run
