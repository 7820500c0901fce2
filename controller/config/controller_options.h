#ifndef EGERIA_CONTROLLER_CONFIG_CONTROLLER_OPTIONS_H_
#define EGERIA_CONTROLLER_CONFIG_CONTROLLER_OPTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/option_set.h"
#include "common/config/values.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"

namespace egeria::controller {

// All options of egeria-controller. deploy/egeria-controller.yaml documents each option.
struct ControllerOptions {
  std::vector<std::string> listen;  // empty: unix:<state_dir>/controller.sock
  std::string socket_mode = "0600";
  std::string state_dir;
  std::string audit_log;  // empty: <state_dir>/audit.jsonl
  bool insecure = false;
  double max_cpu_load = 0.5;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  std::string log_level = "info";
  int ready_fd = -1;

  struct Tls {
    std::string ca, certificate, key;
  } tls;
  struct Admin {
    std::string listen;  // "none": off; empty: beside the first Unix socket, or in state_dir
    std::vector<std::string> operators;
  } admin;
  struct Metrics {
    std::string listen = "127.0.0.1:9464";  // "none": off
    absl::Duration finished_jobs = absl::Minutes(15);
    bool page = true;
  } metrics;
  struct Reference {
    int threads = 1;
    std::vector<int> cpus;
    std::string scope = "module";
    std::vector<std::string> backends = {"int8", "bf16", "prepacked", "aten"};
    config::ByteCount queue_bytes{size_t{256} << 20};
    int queue_samples_per_job = 4;
    config::ByteCount weight_bytes{size_t{2} << 30};
    config::ByteCount memory_bytes{size_t{4} << 30};
    absl::Duration deadline = absl::Seconds(20);
  } reference;
  struct Limits {
    int jobs = 4'096;
    int64_t observations_per_job = 1'000'000;
    config::ByteCount upload_bytes{size_t{4} << 30};
    config::ByteCount pending_upload_bytes{size_t{2} << 30};
  } limits;
  struct Retention {
    absl::Duration finished = absl::Hours(24 * 30);
    absl::Duration silent = absl::Hours(24 * 7);
  } retention;
};

// The default of state_dir: /var/lib/egeria for root, else egeria below $XDG_STATE_HOME or ~/.local/state.
std::string DefaultStateDir(const config::Environment& environment, bool root);

// The options of `options` by name, for Load(). `options` must outlive the set.
config::OptionSet ControllerOptionSet(ControllerOptions* options, const std::string& version);

// The addresses that the options say, the default filled in. Errors: those of rpc::ParseAddress.
absl::StatusOr<std::vector<rpc::Address>> ListenAddresses(const ControllerOptions& options);

// The address for operators, the default filled in; empty: there is none. Errors: those of rpc::ParseAddress and
// rpc::AdminAddress; FAILED_PRECONDITION [INSECURE_ADDRESS] over TCP without certificates or operators.
absl::StatusOr<std::optional<rpc::Address>> AdminListenAddress(const ControllerOptions& options);

// The permissions of the workers' Unix sockets.
mode_t SocketMode(const ControllerOptions& options);

// The path of the audit log, the default filled in.
std::string AuditLogPath(const ControllerOptions& options);

// The TLS files that the options name, or else those that EGERIA_TLS_CA, _CERT and _KEY name.
rpc::TlsFiles TlsFilesOf(const ControllerOptions& options);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_CONFIG_CONTROLLER_OPTIONS_H_
