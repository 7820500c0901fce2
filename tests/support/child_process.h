#ifndef EGERIA_TESTS_SUPPORT_CHILD_PROCESS_H_
#define EGERIA_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::testing {

// A program that a test has started, with a pipe to its standard input and one from its standard output.
// Killed at the latest by the destructor. Thread-compatible.
class ChildProcess {
 public:
  // `environment` entries ("NAME=value", or "NAME" to unset it) change this process's own for the child; of
  // several for one name the last one counts.
  // Standard error goes to the test's, or to `stderr_path` if it is not empty.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command,
                                            const std::vector<std::string>& environment = {},
                                            const std::string& stderr_path = "");
  ChildProcess(ChildProcess&& other);
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // After SIGSTOP all its threads stand still.
  void Signal(int signal) const;
  // Reads standard output up to and without the next newline; empty at its end, or after 30 seconds.
  std::optional<std::string> ReadLine();
  // Reads what is left of standard output.
  std::string ReadAll();
  void CloseStdin();
  // Waits for the end, at most 60 seconds (then kills). The exit code, or 128 + the signal.
  int Wait();

 private:
  ChildProcess(pid_t pid, int to_stdin, int from_stdout) : pid_(pid), stdin_(to_stdin), stdout_(from_stdout) {}
  bool Fill();

  pid_t pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
  std::string buffer_;
  std::optional<int> exit_;
};

// True once no process has this id, or only a zombie has; waits for it at most 30 seconds.
bool WaitUntilGone(pid_t pid);

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_CHILD_PROCESS_H_
