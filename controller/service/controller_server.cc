#include "controller/service/controller_server.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace egeria::controller {

ControllerServer::ControllerServer(const Options& options, JobManager* manager)
    : controller_(manager, options.uploads, options.max_pending_upload_bytes, options.audit),
      admin_(manager, options.operators, options.audit),
      no_admin_(manager, {}, options.audit,
                options.admin_listen.has_value() ? options.admin_listen->ToString() : "no address") {}

absl::StatusOr<std::unique_ptr<ControllerServer>> ControllerServer::Start(Options options, JobManager* manager) {
  std::unique_ptr<ControllerServer> server(new ControllerServer(options, manager));
  rpc::BoundServer::Options workers;
  workers.listen = options.listen;
  workers.unix_sockets.mode = options.socket_mode;
  workers.tls = options.tls;
  workers.insecure_allowed = options.insecure_allowed;
  EGERIA_ASSIGN_OR_RETURN(server->for_workers_,
                          rpc::BoundServer::Start(std::move(workers), {&server->controller_, &server->no_admin_}));
  if (!options.admin_listen.has_value()) return server;
  rpc::BoundServer::Options operators;
  operators.listen = {*options.admin_listen};
  // Whoever has the workers' socket has the one beside it, which a controller that lost the first may still hold.
  operators.unix_sockets.replaces =
      std::any_of(options.listen.begin(), options.listen.end(), [&](const rpc::Address& address) {
        const absl::StatusOr<rpc::Address> beside = rpc::AdminAddress(address);
        return beside.ok() && beside->unix_path == options.admin_listen->unix_path;
      });
  // Others than the controller's own user are let in by who they are.
  operators.unix_sockets.mode = options.operators.empty() ? 0600 : 0666;
  operators.unix_sockets.admits = [names = options.operators](uid_t uid) {
    rpc::Peer caller;
    caller.uid = uid;
    return IsOperator(caller, names);
  };
  operators.tls = options.tls;
  EGERIA_ASSIGN_OR_RETURN(server->for_operators_, rpc::BoundServer::Start(std::move(operators), {&server->admin_}));
  return server;
}

void ControllerServer::Stop(absl::Duration grace) {
  const MutexLock lock(&mutex_);
  if (for_operators_ != nullptr) for_operators_->Stop(grace);
  if (for_workers_ != nullptr) for_workers_->Stop(grace);
  controller_.WaitForStreams();
}

}  // namespace egeria::controller
