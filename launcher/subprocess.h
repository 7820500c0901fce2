#ifndef EGERIA_LAUNCHER_SUBPROCESS_H_
#define EGERIA_LAUNCHER_SUBPROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/signals.h"

namespace egeria::run {

// A child process. Unless it is told to, it does not outlive this one: however this one ends, the kernel sends it
// SIGTERM. Thread-compatible; used from the thread that started it, which must be the program's main thread.
class Subprocess {
 public:
  struct Options {
    std::vector<std::string> command;                // the program's path first
    std::map<std::string, std::string> environment;  // added to this process's
    sigset_t signal_mask;
    bool own_group = false;    // keeps the terminal's Ctrl-C away from it
    bool outlives_us = false;  // it outlives the terminal too, and belongs to none
    std::string output;        // file for its output, emptied first; "": this process's output
    int inherited = -1;        // a descriptor to leave open in it
  };

  // Errors: NOT_FOUND if the program cannot be executed, with the reason; RESOURCE_EXHAUSTED.
  static absl::StatusOr<Subprocess> Start(const Options& options);

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // The exit code, or 128 + the signal's number, once it has ended; does not wait.
  std::optional<int> Poll();
  // Waits until it has ended; false after `patience`, or when another signal to end comes.
  bool WaitForEnd(Signals* signals, absl::Duration patience);
  // Sends SIGTERM, waits so, and then sends SIGKILL.
  void End(Signals* signals, absl::Duration patience);

 private:
  explicit Subprocess(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::optional<int> exit_;
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_SUBPROCESS_H_
