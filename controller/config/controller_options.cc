#include "controller/config/controller_options.h"

#include "common/base/status.h"

namespace egeria::controller {
namespace {

using config::ByteCount;
using config::InRange;
using config::OneOf;

std::string DefaultAddress(const ControllerOptions& options) {
  return absl::StrCat("unix:", options.state_dir, "/controller.sock");
}

std::string CheckBytes(const ByteCount& bytes) {
  return bytes.value >= (size_t{1} << 20) ? "" : "must be at least 1MiB";
}

std::string CheckInterval(const absl::Duration& interval) {
  return interval >= absl::Milliseconds(50) && interval <= absl::Minutes(1) ? "" : "must be between 50ms and 1m";
}

std::string CheckDeadline(const absl::Duration& deadline) {
  return deadline >= absl::Seconds(1) && deadline <= absl::Hours(1) ? "" : "must be between 1s and 1h";
}

std::string CheckRetention(const absl::Duration& kept) {
  return kept >= absl::ZeroDuration() ? "" : "must not be negative";
}

std::string CheckCpus(const std::vector<int>& cpus) {
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= 4'096) return "must be numbers of CPUs, from 0";
  }
  return "";
}

std::string CheckBackends(const std::vector<std::string>& backends) {
  if (backends.empty()) return "must name at least one";
  return config::EachOneOf({"int8", "bf16", "prepacked", "aten"})(backends);
}

std::string CheckMetricsListen(const std::string& listen) {
  if (listen == "none") return "";
  const auto address = rpc::ParseAddress(listen);
  if (!address.ok()) return std::string(address.status().message());
  if (address->is_unix()) return "is host:port, or none";
  return "";
}

std::string CheckSocketMode(const std::string& mode) {
  const bool octal = !mode.empty() && mode.size() <= 4 && mode.find_first_not_of("01234567") == std::string::npos;
  return octal ? "" : "must be octal, such as 0600 or 0660";
}

// Metrics name the jobs, and nobody is asked who he is.
absl::Status CheckMetrics(const ControllerOptions& options) {
  const auto address = rpc::ParseAddress(options.metrics.listen);
  if (!address.ok() || address->IsLocal() || options.insecure) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "INSECURE_ADDRESS",
                    "other machines could read the metrics at ", options.metrics.listen,
                    ": serve them at 127.0.0.1, or say --insecure");
}

absl::Status CheckTogether(const ControllerOptions& options) {
  EGERIA_ASSIGN_OR_RETURN(const std::vector<rpc::Address> addresses, ListenAddresses(options));
  EGERIA_RETURN_IF_ERROR(AdminListenAddress(options).status());
  EGERIA_RETURN_IF_ERROR(CheckMetrics(options));
  const rpc::TlsFiles tls = TlsFilesOf(options);
  for (const rpc::Address& address : addresses) {
    EGERIA_RETURN_IF_ERROR(rpc::ServerCredentialsFor(address, tls, options.insecure).status());
  }
  return absl::OkStatus();
}

void AddGroups(ControllerOptions* options, config::OptionSet* set) {
  set->Add("tls.ca", &options->tls.ca, "PEM file of the authority whose certificates clients must show")
      .Add("tls.certificate", &options->tls.certificate, "PEM file of this controller's certificate chain")
      .Add("tls.key", &options->tls.key, "PEM file of this controller's private key")
      .Add("admin.listen", &options->admin.listen,
           "Address where operators call, unix:/path or host:port (none: off, empty: the first Unix socket of "
           "`listen`, or else <state_dir>/controller.sock, with .admin appended)")
      .Add(
          "admin.operators", &options->admin.operators,
          "Operators besides this user and root: users by name or number, and over TCP the names in their certificates")
      .Add("metrics.listen", &options->metrics.listen, "Address of the Prometheus endpoint, host:port (none: off)",
           config::ValueCheck<std::string>(CheckMetricsListen))
      .Add("metrics.finished_jobs", &options->metrics.finished_jobs,
           "Time that the metrics of a job without streams stay", config::ValueCheck<absl::Duration>(CheckRetention))
      .Add("metrics.page", &options->metrics.page, "Serve a page at / that shows the jobs in a browser")
      .Add("reference.threads", &options->reference.threads, "Threads of the reference engine", InRange(1, 256))
      .Add("reference.cpus", &options->reference.cpus,
           "CPUs to which the reference engine is pinned (empty: it is not pinned)",
           config::ValueCheck<std::vector<int>>(CheckCpus))
      .Add("reference.scope", &options->reference.scope,
           "The modules that a reading runs: the frontmost active one (module), or all up to it (prefix)",
           OneOf({"module", "prefix"}))
      .Add("reference.backends", &options->reference.backends,
           "Backends of the reference engine, the preferred one first",
           config::ValueCheck<std::vector<std::string>>(CheckBackends))
      .Add("reference.queue_bytes", &options->reference.queue_bytes,
           "Memory for samples that wait for the reference engine", config::ValueCheck<ByteCount>(CheckBytes))
      .Add("reference.queue_samples_per_job", &options->reference.queue_samples_per_job,
           "Samples of one job that may wait before the oldest is dropped", InRange(1, 1'000))
      .Add("reference.weight_bytes", &options->reference.weight_bytes,
           "Memory for the snapshots of all jobs, of which the job with the most gives way",
           config::ValueCheck<ByteCount>(CheckBytes))
      .Add("reference.memory_bytes", &options->reference.memory_bytes, "Memory for the values of one evaluation",
           config::ValueCheck<ByteCount>(CheckBytes))
      .Add("reference.deadline", &options->reference.deadline,
           "Processor time for one evaluation, beyond which a module is not evaluated again",
           config::ValueCheck<absl::Duration>(CheckDeadline))
      .Add("limits.jobs", &options->limits.jobs,
           "Number of unfinished jobs, of which one owner has at most three quarters, and of finished jobs that are "
           "kept",
           InRange(1, 1'000'000))
      .Add("limits.observations_per_job", &options->limits.observations_per_job,
           "Number of losses, readings and learning rates that are kept for each job",
           InRange<int64_t>(1'000, 1'000'000'000))
      .Add("limits.upload_bytes", &options->limits.upload_bytes, "Largest size of a sample or a snapshot",
           config::ValueCheck<ByteCount>(CheckBytes))
      .Add("limits.pending_upload_bytes", &options->limits.pending_upload_bytes,
           "Memory for unfinished uploads of all streams together", config::ValueCheck<ByteCount>(CheckBytes))
      .Add("retention.finished", &options->retention.finished, "Time that a finished job is kept",
           config::ValueCheck<absl::Duration>(CheckRetention))
      .Add("retention.silent", &options->retention.silent, "Time that an unfinished job without streams is kept",
           config::ValueCheck<absl::Duration>(CheckRetention));
}

}  // namespace

std::string DefaultStateDir(const config::Environment& environment, bool root) {
  if (root) return "/var/lib/egeria";
  if (auto state = environment.find("XDG_STATE_HOME"); state != environment.end() && !state->second.empty()) {
    return state->second + "/egeria";
  }
  auto home = environment.find("HOME");
  return (home == environment.end() ? "" : home->second) + "/.local/state/egeria";
}

config::OptionSet ControllerOptionSet(ControllerOptions* options, const std::string& version) {
  config::OptionSet set("egeria-controller", "EGERIA_CONTROLLER_",
                        "decides which layers of training jobs to freeze, and when", version);
  set.Add("listen", &options->listen,
          "Addresses, each unix:/path or host:port (empty: unix:<state_dir>/controller.sock)")
      .Add("socket_mode", &options->socket_mode,
           "Permissions of the Unix sockets in `listen`, which say who may connect",
           config::ValueCheck<std::string>(CheckSocketMode))
      .Add("state_dir", &options->state_dir, "Folder of the journal, which one controller at a time may use")
      .Add("audit_log", &options->audit_log,
           "File that records what operators change, which SIGHUP opens anew (empty: <state_dir>/audit.jsonl)")
      .Add("insecure", &options->insecure, "Listen to other machines without TLS")
      .Add("max_cpu_load", &options->max_cpu_load,
           "The reference engine runs while the machine's CPU load is under this share", InRange(0.0, 1.0))
      .Add("heartbeat_interval", &options->heartbeat_interval, "Time between two reports of a rank",
           config::ValueCheck<absl::Duration>(CheckInterval))
      .Add("log_level", &options->log_level, "Lowest level that is logged",
           OneOf({"debug", "info", "warning", "error"}))
      .Add("ready_fd", &options->ready_fd, "File descriptor that gets 'READY=1' once all is up (-1: none)",
           InRange(-1, 65'535));
  AddGroups(options, &set);
  set.AddCheck([options] { return CheckTogether(*options); });
  return set;
}

absl::StatusOr<std::vector<rpc::Address>> ListenAddresses(const ControllerOptions& options) {
  std::vector<std::string> texts = options.listen;
  if (texts.empty()) texts.push_back(DefaultAddress(options));
  std::vector<rpc::Address> addresses;
  for (const std::string& text : texts) {
    EGERIA_ASSIGN_OR_RETURN(rpc::Address address, rpc::ParseAddress(text));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

absl::StatusOr<std::optional<rpc::Address>> AdminListenAddress(const ControllerOptions& options) {
  if (options.admin.listen == "none") return std::nullopt;
  if (options.admin.listen.empty()) {
    EGERIA_ASSIGN_OR_RETURN(const std::vector<rpc::Address> addresses, ListenAddresses(options));
    for (const rpc::Address& address : addresses) {
      if (address.is_unix()) return rpc::AdminAddress(address);
    }
    EGERIA_ASSIGN_OR_RETURN(const rpc::Address beside, rpc::ParseAddress(DefaultAddress(options)));
    return rpc::AdminAddress(beside);
  }
  EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(options.admin.listen));
  if (address.is_unix() || (!TlsFilesOf(options).empty() && !options.admin.operators.empty())) return address;
  return NamedError(absl::StatusCode::kFailedPrecondition, "INSECURE_ADDRESS", "operators may call at ",
                    address.ToString(),
                    " only by certificates: give --tls-ca, --tls-certificate and --tls-key, and in --admin-operators "
                    "the names in their certificates, or a Unix socket");
}

mode_t SocketMode(const ControllerOptions& options) {
  return static_cast<mode_t>(std::stoul(options.socket_mode, nullptr, 8));
}

std::string AuditLogPath(const ControllerOptions& options) {
  return options.audit_log.empty() ? options.state_dir + "/audit.jsonl" : options.audit_log;
}

rpc::TlsFiles TlsFilesOf(const ControllerOptions& options) {
  const rpc::TlsFiles files{options.tls.ca, options.tls.certificate, options.tls.key};
  return files.empty() ? rpc::TlsFilesFromEnvironment() : files;
}

}  // namespace egeria::controller
