#include "launcher/node_cache.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/status.h"
#include "common/config/option_set.h"
#include "launcher/connect.h"
#include "launcher/programs.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::run {
namespace {

constexpr absl::Duration kLockRetry = absl::Milliseconds(20);
constexpr absl::Duration kRestartAfter[] = {absl::Seconds(1), absl::Seconds(2), absl::Seconds(4)};
constexpr int kRestarts = 3;
constexpr char kWithoutCache[] = "Training goes on and computes the frozen layers again.";

std::string Folder(const Arguments& arguments, const config::Environment& environment) {
  return arguments.cache.has_value() ? *arguments.cache : cache::DefaultFolder(environment, geteuid() == 0);
}

// Errors: CANCELLED a signal has come; UNAVAILABLE somebody has held the lock all the time; those of FileLock::Try.
absl::StatusOr<FileLock> Lock(const std::string& path, FileLock::Kind kind, const Signals& signals,
                              absl::Time deadline) {
  for (;;) {
    absl::StatusOr<FileLock> lock = FileLock::Try(path, kind);
    if (lock.ok() || !absl::IsUnavailable(lock.status()) || MonotonicNow() > deadline) return lock;
    if (signals.WaitForInput(-1, kLockRetry) == Signals::Event::kSignal)
      return absl::CancelledError("a signal has come");
  }
}

std::string LogFile(const std::string& folder) { return folder + "/egeria-cache.log"; }

absl::StatusOr<DaemonProcess> StartDaemon(const std::string& folder, const std::string& address,
                                          const Signals& signals) {
  EGERIA_ASSIGN_OR_RETURN(const std::string program, FindDaemon("egeria-cache"));
  Subprocess::Options options;
  options.command = {program, "--folder", folder, "--listen", address, "--until-unused"};
  if (!config::ProcessEnvironment().contains("EGERIA_CACHE_LOG_LEVEL")) {
    options.command.insert(options.command.end(), {"--log-level", "warning"});
  }
  // It may serve other jobs when this one and its terminal have gone.
  options.outlives_us = true;
  options.output = LogFile(folder);
  return DaemonProcess::Start(std::move(options), signals);
}

void WarnThatThereIsNone(const absl::Status& why) {
  if (absl::IsCancelled(why)) return;
  LogWarning("No cache: ", why.message(),
             ". Training goes on without one and computes the frozen layers each time. "
             "--egeria-cache DIR takes another folder, on a disk of this node; --egeria-cache none does without.");
}

}  // namespace

NodeCache::NodeCache(const Arguments& arguments, const Signals& signals) {
  if (arguments.cache.has_value() && (arguments.cache->empty() || *arguments.cache == "none")) return;
  if (arguments.cache.has_value() && absl::StartsWith(*arguments.cache, "unix:")) {
    address_ = *arguments.cache;
    if (const absl::Status status = CheckThatSomebodyListens(address_); !status.ok()) {
      LogWarning("The cache at ", address_, " does not answer (", status.message(),
                 "). Training starts, and finds it should it come later.");
    }
    return;
  }
  FindOrStart(Folder(arguments, config::ProcessEnvironment()), signals, arguments.ready_timeout);
}

void NodeCache::FindOrStart(const std::string& folder, const Signals& signals, absl::Duration patience) {
  const std::string address = cache::DefaultAddress(folder);
  const absl::Time deadline = MonotonicNow() + patience;
  if (const absl::Status made = cache::MakeFolder(folder); !made.ok()) return WarnThatThereIsNone(made);
  // Nobody gets this lock while an egeria-cache is just ending, and none ends while somebody has it.
  absl::StatusOr<FileLock> use = Lock(cache::UsersFile(folder), FileLock::Kind::kShared, signals, deadline);
  if (!use.ok()) return WarnThatThereIsNone(use.status());
  // When several jobs start at the same moment, one of them starts the daemon, and the others adopt it.
  const absl::StatusOr<FileLock> starting = Lock(folder + "/starting", FileLock::Kind::kExclusive, signals, deadline);
  if (!starting.ok()) return WarnThatThereIsNone(starting.status());
  if (!CheckThatSomebodyListens(address).ok()) {
    absl::StatusOr<DaemonProcess> process = StartDaemon(folder, address, signals);
    if (!process.ok()) return WarnThatThereIsNone(process.status());
    const absl::Status ready = process->WaitUntilReady(signals, patience);
    if (absl::IsDeadlineExceeded(ready)) {
      LogWarning("The cache is not ready after ", absl::FormatDuration(patience),
                 ". Training starts, and finds it should it come later.");
    } else if (absl::IsUnavailable(ready)) {
      return WarnThatThereIsNone(ready);
    }
    process_.emplace(*std::move(process));
  }
  address_ = address;
  folder_ = folder;
  use_.emplace(*std::move(use));
}

void NodeCache::Tend(const Signals& signals) {
  if (process_.has_value() && process_->HasJustDied()) {
    if (restarts_ == kRestarts) {
      LogWarning("The cache has ended again, and is not started a fourth time; ", LogFile(folder_), " may say why. ",
                 kWithoutCache);
      return;
    }
    LogWarning("The cache has ended. It is started again in ", absl::FormatDuration(kRestartAfter[restarts_]), ". ",
               kWithoutCache);
    restart_at_ = MonotonicNow() + kRestartAfter[restarts_++];
  }
  if (restart_at_.has_value() && MonotonicNow() >= *restart_at_) {
    restart_at_.reset();
    StartAgain(signals);
  }
}

void NodeCache::StartAgain(const Signals& signals) {
  // Another job of the node may have started one meanwhile, or be just doing so.
  const absl::StatusOr<FileLock> starting = FileLock::Try(folder_ + "/starting", FileLock::Kind::kExclusive);
  if (!starting.ok() || CheckThatSomebodyListens(address_).ok()) {
    process_.reset();
    return;
  }
  std::rename(LogFile(folder_).c_str(), (LogFile(folder_) + ".before").c_str());  // it may say why the other ended
  absl::StatusOr<DaemonProcess> process = StartDaemon(folder_, address_, signals);
  process_.reset();
  if (!process.ok()) return WarnThatThereIsNone(process.status());
  process_.emplace(*std::move(process));
  LogWarning("The cache is started again, for the ",
             restarts_ == 1   ? "first"
             : restarts_ == 2 ? "second"
                              : "third",
             " time.");
}

void NodeCache::Leave(Signals* signals) {
  if (!use_.has_value()) return;
  const bool last = use_->BecomeExclusive();
  use_.reset();
  // It writes what it has in memory, for a job that is resumed.
  if (last && process_.has_value()) process_->WaitForEnd(signals);
}

}  // namespace egeria::run
