#include "deploy/run/controller_process.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "deploy/run/programs.h"

namespace egeria::run {
namespace {

constexpr absl::Duration kEndPatience = absl::Seconds(5);
constexpr int kConnectMilliseconds = 2000;

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] != '\0';
}

std::vector<std::string> Command(const std::string& program, const Arguments& arguments, const std::string& folder,
                                 int ready) {
  const std::string state = arguments.state_dir.empty() ? absl::StrCat(folder, "/state") : arguments.state_dir;
  std::vector<std::string> command = {program,       "--listen", absl::StrCat("unix:", folder, "/controller.sock"),
                                      "--state-dir", state,      "--ready-fd",
                                      absl::StrCat(ready)};
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

absl::Status Connect(int family, const sockaddr* address, socklen_t length) {
  const int socket_fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return absl::UnavailableError(std::strerror(errno));
  int error = connect(socket_fd, address, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wait{socket_fd, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (poll(&wait, 1, kConnectMilliseconds) <= 0) error = ETIMEDOUT;
    else getsockopt(socket_fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  close(socket_fd);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControllerProcess>> ControllerProcess::Start(const Arguments& arguments,
                                                                            const Signals& signals) {
  EGERIA_ASSIGN_OR_RETURN(const std::string program, FindController());
  EGERIA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make());
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::UnavailableError(std::strerror(errno));
  Subprocess::Options options;
  options.command = Command(program, arguments, folder.path(), ready[1]);
  options.signal_mask = signals.original_mask();
  options.own_group = true;
  options.inherited = ready[1];
  absl::StatusOr<Subprocess> process = Subprocess::Start(options);
  close(ready[1]);
  if (!process.ok()) {
    close(ready[0]);
    return process.status();
  }
  return std::unique_ptr<ControllerProcess>(
      new ControllerProcess(std::move(folder), *std::move(process), ready[0]));
}

absl::Status ControllerProcess::WaitUntilReady(const Signals& signals, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::string said;
  while (!absl::StrContains(said, "READY=1")) {
    const Signals::Event event = signals.WaitForInput(ready_, deadline - absl::Now());
    if (event == Signals::Event::kTimeout) return absl::DeadlineExceededError("it is not ready");
    if (event == Signals::Event::kSignal) {
      if (process_.Poll().has_value()) break;  // the signal was its end
      return absl::CancelledError("a signal has come");
    }
    char bytes[64];
    const ssize_t got = read(ready_, bytes, sizeof(bytes));
    if (got <= 0) break;
    said.append(bytes, static_cast<size_t>(got));
  }
  if (absl::StrContains(said, "READY=1")) return absl::OkStatus();
  return absl::UnavailableError("it ended before it was ready; its message is above");
}

bool ControllerProcess::HasJustDied() {
  return process_.Poll().has_value() && !std::exchange(death_known_, true);
}

void ControllerProcess::End(Signals* signals) {
  process_.End(signals, kEndPatience);
  close(std::exchange(ready_, -1));
}

absl::Status CheckThatSomebodyListens(const std::string& text) {
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(text));
  if (address.is_unix()) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.unix_path.c_str(), address.unix_path.size() + 1);
    return Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  absl::Status status = absl::UnavailableError("the name has no address");
  for (const addrinfo* each = found; each != nullptr && !status.ok(); each = each->ai_next) {
    status = Connect(each->ai_family, each->ai_addr, each->ai_addrlen);
  }
  freeaddrinfo(found);
  return status;
}

}  // namespace egeria::run
