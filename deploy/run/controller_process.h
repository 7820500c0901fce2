#ifndef EGERIA_DEPLOY_RUN_CONTROLLER_PROCESS_H_
#define EGERIA_DEPLOY_RUN_CONTROLLER_PROCESS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/run/arguments.h"
#include "deploy/run/signals.h"
#include "deploy/run/subprocess.h"
#include "deploy/run/temp_folder.h"

namespace egeria::run {

// A controller for the time of one job: it listens on a Unix socket in a temporary folder, where its journal
// lies too unless a folder is given for it. Thread-compatible.
class ControllerProcess {
 public:
  // Starts it, without waiting for it. Errors: NOT_FOUND, UNAVAILABLE saying why there is none.
  static absl::StatusOr<std::unique_ptr<ControllerProcess>> Start(const Arguments& arguments,
                                                                  const Signals& signals);

  std::string address() const { return "unix:" + folder_.path() + "/controller.sock"; }

  // Waits until it says that it is ready. Errors: DEADLINE_EXCEEDED, it may still come; UNAVAILABLE, it has
  // ended; CANCELLED, a signal has come for this program.
  absl::Status WaitUntilReady(const Signals& signals, absl::Duration timeout);

  // True the first time that it is found to have ended by itself.
  bool HasJustDied();

  // Ends it and removes the temporary folder.
  void End(Signals* signals);

 private:
  ControllerProcess(TempFolder folder, Subprocess process, int ready)
      : folder_(std::move(folder)), process_(std::move(process)), ready_(ready) {}

  TempFolder folder_;
  Subprocess process_;
  int ready_;  // where it writes READY=1
  bool death_known_ = false;
};

// Tries to connect to a controller that somebody else has started, for two seconds at most.
// Errors: UNAVAILABLE saying why it does not answer.
absl::Status CheckThatSomebodyListens(const std::string& address);

}  // namespace egeria::run

#endif  // EGERIA_DEPLOY_RUN_CONTROLLER_PROCESS_H_
