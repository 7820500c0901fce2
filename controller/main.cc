// egeria-controller: serves training jobs until it is told to stop.
//
// Exit status: 0 after SIGTERM or SIGINT; 1 where it cannot run; 2 for options that are wrong.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/notify.h"
#include "common/base/private_folder.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/metrics/health.h"
#include "common/rpc/certificates.h"
#include "common/rpc/self_check.h"
#include "controller/config/controller_options.h"
#include "controller/job/job_manager.h"
#include "controller/job/journal.h"
#include "controller/reference/evaluator.h"
#include "controller/service/controller_server.h"
#include "controller/web/metrics_server.h"
#include "controller/web/reference_watch.h"

namespace egeria::controller {
namespace {

JobManagerOptions ManagerOptions(const ControllerOptions& options) {
  JobManagerOptions manager;
  manager.scope = options.reference.scope == "prefix" ? ReferenceScope::kPrefix : ReferenceScope::kModule;
  manager.host = HostName();
  manager.heartbeat_interval = options.heartbeat_interval;
  manager.max_jobs = options.limits.jobs;
  manager.max_observations_per_job = options.limits.observations_per_job;
  manager.finished_retention = options.retention.finished;
  manager.silent_retention = options.retention.silent;
  return manager;
}

reference::EvaluatorOptions ReferenceOptions(const ControllerOptions& options) {
  reference::EvaluatorOptions reference;
  reference.threads = options.reference.threads;
  reference.cpus = options.reference.cpus;
  reference.max_cpu_load = options.max_cpu_load;
  reference.max_queue_bytes = options.reference.queue_bytes.value;
  reference.max_samples_per_job = static_cast<size_t>(options.reference.queue_samples_per_job);
  reference.max_weight_bytes = options.reference.weight_bytes.value;
  reference.memory_bytes = options.reference.memory_bytes.value;
  reference.deadline = options.reference.deadline;
  reference.backends = options.reference.backends;
  return reference;
}

absl::StatusOr<std::unique_ptr<ControllerServer>> StartServer(const ControllerOptions& options, JobManager* manager,
                                                              AuditLog* audit) {
  ControllerServer::Options server;
  EGERIA_ASSIGN_OR_RETURN(server.listen, ListenAddresses(options));
  EGERIA_ASSIGN_OR_RETURN(server.admin_listen, AdminListenAddress(options));
  server.socket_mode = SocketMode(options);
  server.operators = options.admin.operators;
  server.audit = audit;
  server.tls = TlsFilesOf(options);
  server.insecure_allowed = options.insecure;
  server.uploads.max_upload_bytes = options.limits.upload_bytes.value;
  server.max_pending_upload_bytes = options.limits.pending_upload_bytes.value;
  return ControllerServer::Start(std::move(server), manager);
}

// Says what is wrong with the certificates, and who may connect that nobody has asked who he is. Call it again when
// that may have changed.
class Concerns {
 public:
  explicit Concerns(const ControllerOptions& options) : tls_(TlsFilesOf(options)) {}

  void TellNew() {
    std::vector<std::string> found = rpc::TroublesOf(tls_, absl::Now());
    for (const std::string& trouble : found) {
      if (std::ranges::find(told_, trouble) == told_.end()) LogWarning(trouble);
    }
    told_ = std::move(found);
  }
  void TellOfOpenAddresses(const std::vector<rpc::Address>& addresses) const {
    for (const rpc::Address& address : addresses) {
      if (address.IsLocal() || !tls_.empty()) continue;
      LogWarning("everybody on the network can use ", address.ToString(), ", since --insecure is set");
    }
  }

 private:
  const rpc::TlsFiles tls_;
  std::vector<std::string> told_;
};

// Tells the service manager that the daemon lives, where it does, and what is wrong with it.
void TellServiceManager(const metrics::Health& health, std::string* told) {
  if (health.Ready().ok()) NotifyServiceManager("WATCHDOG=1");
  std::string trouble(health.Healthy().message());
  std::replace(trouble.begin(), trouble.end(), '\n', ' ');
  if (trouble != *told) NotifyServiceManager("STATUS=" + trouble);
  *told = std::move(trouble);
}

// Returns OK when one of the signals comes that end it; does the upkeep meanwhile. Errors: UNAVAILABLE the controller
// is deaf.
absl::Status ServeUntil(const sigset_t& signals, ControllerServer* server, JobManager* manager, metrics::Health* health,
                        AuditLog* audit, Concerns* concerns) {
  rpc::SelfCheck check(server->addresses());
  ReferenceWatch reference_watch;
  constexpr timespec kTick = {1, 0};
  constexpr int kTicksPerMaintenance = 60;
  std::string told;
  for (int ticks = 1;; ++ticks) {
    const int signal = sigtimedwait(&signals, nullptr, &kTick);
    if (signal == SIGHUP) {
      LogInfo("received SIGHUP: reopened the audit log, and read changed certificates");
      audit->Reopen();
      concerns->TellNew();
    } else if (signal > 0) {
      LogInfo("received ", strsignal(signal), ", stopping");
      return absl::OkStatus();
    }
    health->SetDegraded("journal", manager->Tend());
    health->SetDegraded("reference", manager->ReferenceHealth());
    server->EndSilentStreams(MonotonicNow());
    check.Look();
    health->SetDegraded("sockets", check.paths());
    health->SetUseless("addresses", check.hearing());
    if (check.IsLost()) return check.hearing();
    health->Beat();
    TellServiceManager(*health, &told);
    if (ticks % kTicksPerMaintenance == 0) {
      manager->Maintain();
      health->SetDegraded("reference engine", reference_watch.Look(manager->View().evaluator, MonotonicNow()));
      concerns->TellNew();
    }
  }
}

absl::Status Run(const ControllerOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all inherit it
  signal(SIGPIPE, SIG_IGN);

  rpc::AllowDescriptors();
  EGERIA_RETURN_IF_ERROR(MakePrivateFolder(options.state_dir));
  EGERIA_ASSIGN_OR_RETURN(auto journal, Journal::Open(options.state_dir + "/journal"));
  EGERIA_ASSIGN_OR_RETURN(auto manager, JobManager::Start(ManagerOptions(options), std::move(journal),
                                                          [&options](reference::Evaluator::Callback on_result) {
                                                            return reference::Evaluator::Start(
                                                                ReferenceOptions(options), std::move(on_result));
                                                          }));
  EGERIA_ASSIGN_OR_RETURN(const auto audit, AuditLog::Open(AuditLogPath(options)));
  EGERIA_ASSIGN_OR_RETURN(auto server, StartServer(options, manager.get(), audit.get()));
  metrics::Health health;
  MetricsServer::Options metrics_options;
  metrics_options.listen = options.metrics.listen;
  metrics_options.keep_silent_jobs = options.metrics.finished_jobs;
  metrics_options.version = Version();
  metrics_options.page = options.metrics.page;
  EGERIA_ASSIGN_OR_RETURN(auto metrics, MetricsServer::Start(metrics_options, manager.get(), &health));

  for (const rpc::Address& address : server->addresses()) LogInfo("listening on ", address.ToString());
  for (const rpc::Address& address : server->admin_addresses()) LogInfo("operators at ", address.ToString());
  if (!metrics->url().empty()) LogInfo("metrics at ", metrics->url());
  Concerns concerns(options);
  concerns.TellNew();
  concerns.TellOfOpenAddresses(server->addresses());
  NotifyDescriptor(options.ready_fd);
  NotifyServiceManager("READY=1");
  health.SetServing(true);
  const absl::Status served = ServeUntil(signals, server.get(), manager.get(), &health, audit.get(), &concerns);
  health.SetServing(false);
  NotifyServiceManager("STOPPING=1");
  manager->Stop();  // first, so that the streams end with a reason
  server->Stop();
  metrics->Stop();
  return served;
}

int Main(int argc, char** argv) {
  ControllerOptions options;
  const config::Environment environment = config::ProcessEnvironment();
  options.state_dir = DefaultStateDir(environment, geteuid() == 0);
  auto outcome = ControllerOptionSet(&options, Version()).Load(argc, argv, environment, std::cout);
  if (!outcome.ok()) {
    std::cerr << "egeria-controller: " << outcome.status().message() << "\n";
    return 2;
  }
  if (*outcome == config::OptionSet::Outcome::kExit) return 0;
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(options.log_level, &level);
  ConfigureLogging("egeria-controller", level);
  if (const absl::Status ran = Run(options); !ran.ok()) {
    LogError(std::string(ran.message()));
    return 1;
  }
  LogInfo("stopped");
  return 0;
}

}  // namespace
}  // namespace egeria::controller

int main(int argc, char** argv) { return egeria::controller::Main(argc, argv); }
