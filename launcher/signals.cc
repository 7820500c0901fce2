#include "launcher/signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/status.h"

namespace egeria::run {
namespace {

int Milliseconds(absl::Duration timeout) {
  // Rounded up: a wait never ends before its time.
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1'000'000'000));
}

}  // namespace

Signals::Signals() {
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGCHLD);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction present;
    sigaction(number, nullptr, &present);
    if (present.sa_handler != SIG_IGN) sigaddset(&ours, number);  // nohup stays nohup
  }
  sigprocmask(SIG_BLOCK, &ours, &original_mask_);
  descriptor_ = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
  sigdelset(&ours, SIGCHLD);
  passed_on_ = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
  EGERIA_CHECK(descriptor_ >= 0 && passed_on_ >= 0);
}

Signals::~Signals() {
  close(descriptor_);
  close(passed_on_);
}

std::optional<Signals::Signal> Signals::Next(absl::Duration timeout) {
  pollfd wait{descriptor_, POLLIN, 0};
  if (poll(&wait, 1, Milliseconds(timeout)) <= 0) return std::nullopt;
  signalfd_siginfo info;
  if (read(descriptor_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return Signal{static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
}

Signals::Event Signals::WaitForInput(int descriptor, absl::Duration timeout) const {
  pollfd wait[2] = {{descriptor, POLLIN, 0}, {passed_on_, POLLIN, 0}};
  if (poll(wait, 2, Milliseconds(timeout)) <= 0) return Event::kTimeout;
  return wait[0].revents != 0 ? Event::kInput : Event::kSignal;
}

}  // namespace egeria::run
