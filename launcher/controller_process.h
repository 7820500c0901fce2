#ifndef EGERIA_LAUNCHER_CONTROLLER_PROCESS_H_
#define EGERIA_LAUNCHER_CONTROLLER_PROCESS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "launcher/arguments.h"
#include "launcher/daemon_process.h"
#include "launcher/signals.h"
#include "launcher/temp_folder.h"

namespace egeria::run {

// A controller for the time of one job: it listens on a Unix socket in a temporary folder, where its journal
// lies too unless a folder is given for it. Thread-compatible.
class ControllerProcess {
 public:
  // Starts it, without waiting for it. Errors: NOT_FOUND, UNAVAILABLE saying why there is none.
  static absl::StatusOr<std::unique_ptr<ControllerProcess>> Start(const Arguments& arguments, const Signals& signals);

  std::string address() const { return "unix:" + folder_.path() + "/controller.sock"; }
  DaemonProcess& process() { return process_; }

 private:
  ControllerProcess(TempFolder folder, DaemonProcess process)
      : folder_(std::move(folder)), process_(std::move(process)) {}

  TempFolder folder_;  // removed with this object
  DaemonProcess process_;
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_CONTROLLER_PROCESS_H_
