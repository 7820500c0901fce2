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
  std::vector<std::string> command = {program, "--listen", absl::StrCat("unix:", folder, "/controller.sock")};
  if (!arguments.state_dir.empty()) {
    command.insert(command.end(), {"--state-dir", arguments.state_dir});
  } else if (!IsSet("EGERIA_CONTROLLER_STATE_DIR")) {
    command.insert(command.end(), {"--state-dir", absl::StrCat(folder, "/state")});
  }
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
  EGERIA_ASSIGN_OR_RETURN(TempFolder folder,
                          arguments.beside.empty() ? TempFolder::Make() : TempFolder::Take(arguments.beside));
  EGERIA_ASSIGN_OR_RETURN(const std::string program, FindDaemon("egeria-controller"));
  Subprocess::Options options;
  options.command = Command(program, arguments, folder.path());
  options.own_group = true;
  EGERIA_ASSIGN_OR_RETURN(DaemonProcess process, DaemonProcess::Start(std::move(options), signals));
  return std::unique_ptr<ControllerProcess>(new ControllerProcess(std::move(folder), std::move(process)));
}

}  // namespace egeria::run
