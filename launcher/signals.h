#ifndef EGERIA_LAUNCHER_SIGNALS_H_
#define EGERIA_LAUNCHER_SIGNALS_H_

#include <signal.h>

#include <optional>

#include "absl/time/time.h"

namespace egeria::run {

// Takes over the signals that a launcher passes on (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, but
// for those that were ignored when the program started) and SIGCHLD: they are blocked, and read from a
// descriptor instead. One per process, before any thread is started. Thread-compatible.
class Signals {
 public:
  struct Signal {
    int number = 0;
    // True for a signal from the terminal or the kernel, which send it to the whole foreground process group: children
    // have it too.
    bool to_group = false;
  };

  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // The next signal; empty after `timeout` without one.
  std::optional<Signal> Next(absl::Duration timeout);

  // Waits until `descriptor` (-1: none) can be read or a signal other than SIGCHLD comes, which stays for Next().
  enum class Event { kInput, kSignal, kTimeout };
  Event WaitForInput(int descriptor, absl::Duration timeout) const;

  // The signal mask that children are to have.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  int descriptor_ = -1;
  int passed_on_ = -1;  // as descriptor_, without SIGCHLD
  sigset_t original_mask_;
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_SIGNALS_H_
