// egeria-cache keeps activations for the training processes of its node until it is told to stop, or with until_unused
// until nobody needs it.
//
// Its exit status is 0 after SIGTERM or SIGINT and when it is not needed any more, 1 where it cannot run, and 2 for
// wrong options.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/file_lock.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/base/status.h"
#include "common/metrics/health.h"
#include "common/metrics/metrics_endpoint.h"
#include "common/rpc/self_check.h"
#include "common/thread/thread.h"
#include "worker/cache/daemon/cache_metrics.h"
#include "worker/cache/daemon/cache_options.h"
#include "worker/cache/daemon/cache_server.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::cache {
namespace {

constexpr timespec kLookEvery = {.tv_sec = 0, .tv_nsec = 200'000'000};
constexpr timespec kTendEvery = {.tv_sec = 1, .tv_nsec = 0};

sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all inherit it
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Says how the store does, and tells the service manager that the daemon lives.
void Tend(const CacheServer& server, rpc::SelfCheck* check, metrics::Health* health) {
  check->Look();
  health->SetDegraded("store", server.store().Trouble());
  health->SetDegraded("socket", check->paths());
  health->SetUseless("socket", check->hearing());
  health->Beat();
  if (health->Ready().ok()) NotifyServiceManager("WATCHDOG=1");
}

// Returns when it is time to end. The lock that it returns keeps processes that want the folder waiting meanwhile.
std::optional<FileLock> WaitForEnd(const CacheOptions& options, const CacheServer& server, const sigset_t& signals,
                                   rpc::SelfCheck* check, metrics::Health* health) {
  const CacheService& service = server.service();
  for (;;) {
    Tend(server, check, health);
    const int received = sigtimedwait(&signals, nullptr, options.until_unused ? &kLookEvery : &kTendEvery);
    if (received > 0) {
      LogInfo("received ", strsignal(received), ", stopping");
      return std::nullopt;
    }
    if (!options.until_unused || service.counters().sessions > 0) continue;
    auto users = FileLock::Try(UsersFile(options.folder), FileLock::Kind::kExclusive);
    if (absl::IsUnavailable(users.status()) || service.counters().sessions > 0) continue;
    LogInfo("nobody uses ", options.folder, " any more, stopping");
    if (!users.ok()) return std::nullopt;  // the folder has gone
    return *std::move(users);
  }
}

absl::Status Run(const CacheOptions& options) {
  const sigset_t signals = BlockSignals();
  rpc::AllowDescriptors();         // each blob file that was read stays open
  std::optional<FileLock> unused;  // comes first, so that it is held until the store has been closed
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, ListenAddress(options));
  EGERIA_ASSIGN_OR_RETURN(auto server, CacheServer::Start(address, StoreOptions(options)));
  metrics::Health health;
  EGERIA_ASSIGN_OR_RETURN(
      auto metrics, metrics::MetricsEndpoint::Start(options.metrics_listen,
                                                    std::make_shared<CacheMetrics>(server.get(), &health), &health));
  const ActivationStore::Totals totals = server->store().totals();
  LogInfo("listening on ", address.ToString(), ", ", totals.entries, " entries in ", options.folder);
  if (!metrics->url().empty()) LogInfo("metrics at ", metrics->url());
  NotifyDescriptor(options.ready_fd);
  NotifyServiceManager("READY=1");
  health.SetServing(true);
  rpc::SelfCheck check({address});
  if (std::optional<FileLock> lock = WaitForEnd(options, *server, signals, &check, &health))
    unused.emplace(*std::move(lock));
  health.SetServing(false);
  NotifyServiceManager("STOPPING=1");
  metrics->Stop();
  // A call may wait for the disk, and the server would wait for that call.
  std::atomic<bool> stopped{false};
  std::thread stopping = StartThread("cache-stop", [&] {
    server->Stop();
    stopped = true;
  });
  while (!stopped && !server->store().IsStuck()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (server->store().IsStuck()) {
    LogWarning("the disk does not take the last entries, which are lost");
    unlink(address.unix_path.c_str());
    _exit(0);  // threads of the store wait for the disk
  }
  stopping.join();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CacheOptions options;
  const config::Environment environment = config::ProcessEnvironment();
  options.folder = DefaultFolder(environment, geteuid() == 0);
  const auto outcome = CacheOptionSet(&options).Load(argc, argv, environment, std::cout);
  if (!outcome.ok()) {
    std::cerr << "egeria-cache: " << outcome.status().message() << "\n";
    return 2;
  }
  if (*outcome == config::OptionSet::Outcome::kExit) return 0;
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(options.log_level, &level);
  ConfigureLogging("egeria-cache", level);
  if (const absl::Status ran = Run(options); !ran.ok()) {
    LogError(std::string(ran.message()));
    NotifyDescriptor(options.ready_fd, absl::StrCat("STATUS=", ran.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace egeria::cache

int main(int argc, char** argv) { return egeria::cache::Main(argc, argv); }
