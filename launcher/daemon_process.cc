#include "launcher/daemon_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/monotonic.h"

namespace egeria::run {
namespace {

constexpr absl::Duration kEndPatience = absl::Seconds(5);

}  // namespace

absl::StatusOr<DaemonProcess> DaemonProcess::Start(Subprocess::Options options, const Signals& signals) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::UnavailableError(std::strerror(errno));
  options.command.insert(options.command.end(), {"--ready-fd", absl::StrCat(ready[1])});
  options.signal_mask = signals.original_mask();
  options.inherited = ready[1];
  absl::StatusOr<Subprocess> process = Subprocess::Start(options);
  close(ready[1]);
  if (process.ok()) return DaemonProcess(*std::move(process), ready[0], options.output);
  close(ready[0]);
  return process.status();
}

DaemonProcess::~DaemonProcess() {
  if (ready_ >= 0) close(ready_);
}

absl::Status DaemonProcess::WaitUntilReady(const Signals& signals, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  std::string said;
  while (!absl::StrContains(said, "READY=1")) {
    const Signals::Event event = signals.WaitForInput(ready_, deadline - MonotonicNow());
    if (event == Signals::Event::kTimeout) return absl::DeadlineExceededError("it is not ready");
    if (event == Signals::Event::kSignal) return absl::CancelledError("a signal has come");
    char bytes[512];
    const ssize_t got = read(ready_, bytes, sizeof(bytes));
    if (got <= 0) {
      death_known_ = true;
      absl::string_view reason = absl::StripSuffix(said, "\n");
      if (absl::ConsumePrefix(&reason, "STATUS=")) return absl::UnavailableError(reason);
      return absl::UnavailableError(absl::StrCat("it ended before it was ready; its message is ",
                                                 output_.empty() ? "above" : absl::StrCat("in ", output_)));
    }
    said.append(bytes, static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

bool DaemonProcess::HasJustDied() { return process_.Poll().has_value() && !std::exchange(death_known_, true); }

void DaemonProcess::End(Signals* signals) { process_.End(signals, kEndPatience); }

void DaemonProcess::WaitForEnd(Signals* signals) { process_.WaitForEnd(signals, kEndPatience); }

}  // namespace egeria::run
