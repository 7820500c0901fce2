#include "launcher/subprocess.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/monotonic.h"

extern char** environ;

namespace egeria::run {
namespace {

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : added) entries.push_back(absl::StrCat(name, "=", value));
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void Report(int error, int report) {
  if (write(report, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

bool PrintTo(const char* path) {
  const int output = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return output >= 0 && input >= 0 && dup2(input, 0) >= 0 && dup2(output, 1) >= 0 && dup2(output, 2) >= 0;
}

// Runs in the child between fork and exec, and does only what is safe there. Writes errno to `report` if it fails.
[[noreturn]] void BecomeProgram(const Subprocess::Options& options, pid_t parent, char** arguments, char** environment,
                                int report) {
  if (options.outlives_us) {
    setsid();
  } else {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // the parent died before the kernel was told
    if (options.own_group) setpgid(0, 0);
  }
  // Otherwise whoever reads what this process prints would wait for the end of the child.
  if (!options.output.empty() && !PrintTo(options.output.c_str())) Report(errno, report);
  if (options.inherited >= 0) fcntl(options.inherited, F_SETFD, 0);
  sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
  execve(arguments[0], arguments, environment);
  Report(errno, report);
}

}  // namespace

absl::StatusOr<Subprocess> Subprocess::Start(const Options& options) {
  std::vector<std::string> arguments = options.command, environment = Environment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(arguments), environment_pointers = Pointers(environment);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return absl::ResourceExhaustedError(std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(options, parent, const_cast<char**>(argument_pointers.data()),
                  const_cast<char**>(environment_pointers.data()), report[1]);
  }
  close(report[1]);
  int error = pid < 0 ? errno : 0;
  if (pid > 0) {
    const bool failed = read(report[0], &error, sizeof(error)) == sizeof(error);
    if (failed) waitpid(pid, nullptr, 0);
    else error = 0;
  }
  close(report[0]);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot fork: ", std::strerror(error)));
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("cannot execute ", options.command[0], ": ", std::strerror(error)));
  }
  return Subprocess(pid);
}

void Subprocess::Signal(int number) const {
  if (!exit_.has_value()) kill(pid_, number);
}

std::optional<int> Subprocess::Poll() {
  int status = 0;
  if (!exit_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_;
}

bool Subprocess::WaitForEnd(Signals* signals, absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + patience;
  while (!Poll().has_value() && MonotonicNow() < deadline) {
    const std::optional<Signals::Signal> signal = signals->Next(deadline - MonotonicNow());
    const bool hurry = signal.has_value() && (signal->number == SIGINT || signal->number == SIGTERM);
    if (hurry) break;
  }
  return Poll().has_value();
}

void Subprocess::End(Signals* signals, absl::Duration patience) {
  Signal(SIGTERM);
  Signal(SIGCONT);  // a stopped process takes no SIGTERM
  if (WaitForEnd(signals, patience)) return;
  Signal(SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_ = 128 + SIGKILL;
}

}  // namespace egeria::run
