#ifndef EGERIA_LAUNCHER_DAEMON_PROCESS_H_
#define EGERIA_LAUNCHER_DAEMON_PROCESS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/signals.h"
#include "launcher/subprocess.h"

namespace egeria::run {

// One of Egeria's daemons, started beside the job: with --ready-fd it says when it can be used, or why it cannot.
// Thread-compatible; used from the thread that started it.
class DaemonProcess {
 public:
  // Starts it, without waiting for it; adds --ready-fd to the command, and the signal mask. Errors: those of
  // Subprocess::Start; UNAVAILABLE.
  static absl::StatusOr<DaemonProcess> Start(Subprocess::Options options, const Signals& signals);
  DaemonProcess(DaemonProcess&& other)
      : process_(std::move(other.process_)),
        ready_(std::exchange(other.ready_, -1)),
        output_(std::move(other.output_)),
        death_known_(other.death_known_) {}
  DaemonProcess& operator=(DaemonProcess&&) = delete;
  ~DaemonProcess();

  // Waits until it says that it is ready. Errors: DEADLINE_EXCEEDED, it may still come; UNAVAILABLE, it has ended, with
  // the reason where it gave one; CANCELLED, a signal has come for this program.
  absl::Status WaitUntilReady(const Signals& signals, absl::Duration timeout);

  // True the first time that it is found to have ended by itself.
  bool HasJustDied();

  // Ends it.
  void End(Signals* signals);
  // Waits a few seconds for it to end by itself, or until a signal to end comes.
  void WaitForEnd(Signals* signals);

 private:
  DaemonProcess(Subprocess process, int ready, std::string output)
      : process_(std::move(process)), ready_(ready), output_(std::move(output)) {}

  Subprocess process_;
  int ready_;           // where it writes READY=1
  std::string output_;  // see Subprocess::Options
  bool death_known_ = false;
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_DAEMON_PROCESS_H_
