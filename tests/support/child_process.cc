#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace egeria::testing {
namespace {

using std::chrono::steady_clock;
constexpr std::chrono::seconds kReadPatience(30);
constexpr std::chrono::seconds kWaitPatience(60);

std::vector<std::string> Environment(const std::vector<std::string>& changes) {
  const auto name = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool changed = false;
    for (const std::string& change : changes) changed = changed || name(change) == name(*entry);
    if (!changed) result.push_back(*entry);
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    bool overruled = !absl::StrContains(changes[i], "=");
    for (size_t later = i + 1; later < changes.size(); ++later) {
      overruled = overruled || name(changes[later]) == name(changes[i]);
    }
    if (!overruled) result.push_back(changes[i]);
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command,
                                                 const std::vector<std::string>& environment,
                                                 const std::string& stderr_path) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return absl::InternalError("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  if (!stderr_path.empty()) {
    posix_spawn_file_actions_addopen(&actions, 2, stderr_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  std::vector<std::string> arguments = command, variables = Environment(environment);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, command[0].c_str(), &actions, nullptr, Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  if (error != 0) {
    close(in[1]);
    close(out[0]);
    return absl::NotFoundError(absl::StrCat("cannot start ", command[0], ": ", std::strerror(error)));
  }
  return ChildProcess(pid, in[1], out[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other)
    : pid_(std::exchange(other.pid_, -1)),
      stdin_(std::exchange(other.stdin_, -1)),
      stdout_(std::exchange(other.stdout_, -1)),
      buffer_(std::move(other.buffer_)),
      exit_(other.exit_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  if (!exit_.has_value()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseStdin();
  close(stdout_);
}

void ChildProcess::Signal(int signal) const {
  if (exit_.has_value()) return;
  kill(pid_, signal);
  siginfo_t info;
  if (signal == SIGSTOP) waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

bool ChildProcess::Fill() {
  pollfd wait{stdout_, POLLIN, 0};
  if (poll(&wait, 1, std::chrono::milliseconds(kReadPatience).count()) <= 0) return false;
  char bytes[4096];
  const ssize_t got = read(stdout_, bytes, sizeof(bytes));
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::optional<std::string> ChildProcess::ReadLine() {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    if (!Fill()) return std::nullopt;
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::string ChildProcess::ReadAll() {
  while (Fill()) {
  }
  return std::exchange(buffer_, "");
}

void ChildProcess::CloseStdin() {
  if (stdin_ >= 0) close(std::exchange(stdin_, -1));
}

int ChildProcess::Wait() {
  const auto deadline = steady_clock::now() + kWaitPatience;
  while (!exit_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (steady_clock::now() > deadline) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // polling, bounded by the deadline above
  }
  return *exit_;
}

bool WaitUntilGone(pid_t pid) {
  const auto deadline = steady_clock::now() + kReadPatience;
  while (steady_clock::now() < deadline) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string stat;
    if (!std::getline(file, stat)) return true;
    if (stat.compare(stat.rfind(')') + 2, 1, "Z") == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace egeria::testing
