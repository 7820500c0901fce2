#include "controller/reference/engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "controller/reference/message_frame.h"
#include "controller/reference/thread_priority.h"

namespace egeria::reference {
namespace {

constexpr std::chrono::milliseconds kPoll(50);
constexpr std::chrono::seconds kStartPatience(60);
constexpr uint32_t kMaxReplyBytes = uint32_t{64} << 10;
constexpr double kProgress = 1e-3;  // seconds of processor time

template <typename... Args>
absl::Status Lost(const Args&... why) {
  return NamedError(absl::StatusCode::kUnavailable, "REFERENCE_LOST", why...);
}

// The process gets only the part of this one's environment that says how its libraries compute, and where they are.
std::vector<std::string> EnvironmentOfEngine() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    for (const char* prefix : {"OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "LD_LIBRARY_PATH=",
                               "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "TSAN_OPTIONS=", "LSAN_OPTIONS="}) {
      if (absl::StartsWith(*entry, prefix)) kept.emplace_back(*entry);
    }
  }
  return kept;
}

// A descriptor above those that the process is given, so that none is overwritten before it is passed on.
int Raised(int fd) {
  const int raised = fcntl(fd, F_DUPFD_CLOEXEC, 10);
  close(fd);
  return raised;
}

// Descriptors: 2 is this process's, 3 the socket, 4 the shared memory. Returns an error number or 0.
int SpawnWith(const std::string& program, int socket, int memory, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, 3);
  posix_spawn_file_actions_adddup2(&actions, memory, 4);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> environment = EnvironmentOfEngine();
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  std::string name = program, parent = absl::StrCat(getpid());
  char* arguments[] = {name.data(), parent.data(), nullptr};
  const int error = posix_spawn(pid, program.c_str(), &actions, &attributes, arguments, entries.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::Status EngineProcess::Start() {
  char byte = 0;
  if (running() && waiting_ == 0 && recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
    LogWarning("the reference engine has ended without a sample: ", Gone().message());
  }
  if (running()) return absl::OkStatus();
  EGERIA_RETURN_IF_ERROR(Spawn());
  outgoing_.clear();
  incoming_.clear();
  AppendFrame(options_.setup, &outgoing_);
  waiting_ = 1;
  RestartClock();
  EGERIA_ASSIGN_OR_RETURN(const std::string text, Exchange(/*starting=*/true));
  engine::v1::Reply reply;
  if (!reply.ParseFromString(text) || reply.code() != 0 || reply.version() != Version()) {
    End("lost");
    return Lost(options_.program, " says ", reply.message(), " and is of version '", reply.version(),
                "': it must be the one that was installed with this program, which is ", Version());
  }
  return absl::OkStatus();
}

absl::Status EngineProcess::Spawn() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Lost("no socket: ", std::strerror(errno));
  const int theirs = Raised(ends[1]);
  const int memory = fcntl(options_.memory->read_only_fd(), F_DUPFD_CLOEXEC, 10);
  int error = errno;
  pid_t pid = -1;
  if (theirs >= 0 && memory >= 0) error = SpawnWith(options_.program, theirs, memory, &pid);
  close(theirs);
  close(memory);
  if (pid <= 0) {
    close(ends[0]);
    return Lost(options_.program, " cannot be started: ", std::strerror(error));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  socket_ = ends[0];
  ++starts_;
  {
    const MutexLock lock(&mutex_);
    pid_ = pid;
    idle_ = false;
    error = clock_getcpuclockid(pid, &cpu_clock_);
  }
  if (error == 0) return absl::OkStatus();
  End("lost");
  return Lost("the processor time of ", options_.program, " cannot be read: ", std::strerror(error));
}

void EngineProcess::Send(const engine::v1::Request& request) {
  AppendFrame(request, &outgoing_);
  if (waiting_++ == 0) RestartClock();
}

void EngineProcess::RestartClock() {
  const MutexLock lock(&mutex_);
  cpu_at_start_ = cpu_at_progress_ = CurrentCpuSeconds();
  start_ = progress_ = checked_ = Clock::now();
}

absl::StatusOr<engine::v1::Reply> EngineProcess::Receive() {
  EGERIA_ASSIGN_OR_RETURN(const std::string text, Exchange(/*starting=*/false));
  engine::v1::Reply reply;
  if (reply.ParseFromString(text)) return reply;
  End("crash");
  return NamedError(absl::StatusCode::kInternal, "REFERENCE_CRASHED", "its process has answered what makes no sense");
}

// Moves bytes until there is a reply, and returns it as it has come.
absl::StatusOr<std::string> EngineProcess::Exchange(bool starting) {
  while (true) {
    if (std::optional<std::string> reply = TakeFrame(&incoming_, kMaxReplyBytes)) {
      --waiting_;
      RestartClock();
      return *std::move(reply);
    }
    if (options_.stopping()) {
      End("");
      return absl::CancelledError("the controller is going down");
    }
    if (Clock::now() - checked_ >= kPoll) EGERIA_RETURN_IF_ERROR(CheckTime(starting));
    EGERIA_RETURN_IF_ERROR(TransferSome());
  }
}

absl::Status EngineProcess::TransferSome() {
  pollfd poller = {socket_, static_cast<short>(outgoing_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  if (poll(&poller, 1, static_cast<int>(kPoll.count())) <= 0) return absl::OkStatus();
  if ((poller.revents & POLLOUT) != 0) {
    const ssize_t sent = send(socket_, outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent > 0) outgoing_.erase(0, static_cast<size_t>(sent));
  }
  if ((poller.revents & (POLLIN | POLLHUP | POLLERR)) == 0) return absl::OkStatus();
  char buffer[4096];
  const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
  if (got > 0) {
    incoming_.append(buffer, static_cast<size_t>(got));
    return absl::OkStatus();
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? absl::OkStatus() : Gone();
}

absl::Status EngineProcess::CheckTime(bool starting) {
  const Clock::time_point now = checked_ = Clock::now();
  const auto deadline = std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(options_.deadline));
  double cpu = 0;
  bool idle = false;
  {
    const MutexLock lock(&mutex_);
    cpu = CurrentCpuSeconds();
    idle = idle_;
  }
  if (starting) {
    if (now - start_ < kStartPatience) return absl::OkStatus();
    End("lost");
    return Lost(options_.program, " was not ready within a minute");
  }
  if (cpu - cpu_at_start_ > absl::ToDoubleSeconds(options_.deadline) * options_.setup.threads()) {
    End("deadline");
    return NamedError(absl::StatusCode::kDeadlineExceeded, "REFERENCE_TOO_SLOW", "it has taken more than ",
                      absl::FormatDuration(options_.deadline), " of processor time (reference.deadline)");
  }
  if (cpu - cpu_at_progress_ > kProgress) {
    cpu_at_progress_ = cpu;
    progress_ = now;
  }
  if (idle && now - start_ > deadline) {
    SetIdle(false);
    progress_ = now;
  } else if (!idle && now - progress_ > deadline) {
    End("lost");
    return Lost("its process has stood still for ", absl::FormatDuration(options_.deadline));
  }
  return absl::OkStatus();
}

// Judges the request that the process was working at by the way in which the process has ended.
absl::Status EngineProcess::Gone() {
  siginfo_t info{};
  {
    const MutexLock lock(&mutex_);
    kill(pid_, SIGKILL);  // has no effect on a process that has ended
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  const bool by_signal = info.si_code != CLD_EXITED;
  const int number = info.si_status;
  const bool from_outside = by_signal && (number == SIGKILL || number == SIGTERM || number == SIGINT ||
                                          number == SIGHUP || number == SIGQUIT);
  End(from_outside ? "lost" : "crash");
  const std::string how =
      by_signal ? absl::StrCat("was ended by ", strsignal(number)) : absl::StrCat("has ended with status ", number);
  if (from_outside) return Lost("its process ", how, " from outside, perhaps because memory ran out");
  return NamedError(absl::StatusCode::kInternal, "REFERENCE_CRASHED", "its process ", how);
}

void EngineProcess::End(const std::string& reason) {
  if (!running()) return;
  const MutexLock lock(&mutex_);
  rusage usage{};
  kill(pid_, SIGKILL);
  while (wait4(pid_, nullptr, 0, &usage) < 0 && errno == EINTR) {
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  cpu_of_ended_ += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  pid_ = -1;
  close(std::exchange(socket_, -1));
  waiting_ = 0;
  if (!reason.empty()) ++ends_[reason];
}

void EngineProcess::SetIdle(bool idle) {
  const MutexLock lock(&mutex_);
  if (pid_ > 0 && idle_ != idle && SetIdlePriority(pid_, idle)) idle_ = idle;
}

double EngineProcess::CurrentCpuSeconds() const {
  timespec now{};
  if (pid_ <= 0 || clock_gettime(cpu_clock_, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double EngineProcess::CpuSeconds() const {
  const MutexLock lock(&mutex_);
  return cpu_of_ended_ + CurrentCpuSeconds();
}

std::map<std::string, int64_t> EngineProcess::Ends() const {
  const MutexLock lock(&mutex_);
  return ends_;
}

size_t EngineProcess::ResidentBytes() const {
  const MutexLock lock(&mutex_);
  if (pid_ <= 0) return 0;
  std::ifstream file(absl::StrCat("/proc/", pid_, "/statm"));
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace egeria::reference
