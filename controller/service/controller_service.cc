#include "controller/service/controller_service.h"

#include "common/rpc/grpc_status.h"
#include "controller/service/rank_stream.h"

namespace egeria::controller {

grpc::ServerUnaryReactor* ControllerService::RegisterJob(grpc::CallbackServerContext* context,
                                                         const v1::RegisterJobRequest* request,
                                                         v1::RegisterJobResponse* response) {
  auto registered = manager_->registrar().Register(*request);
  if (registered.ok()) *response = *std::move(registered);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(registered.status()));
  return reactor;
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* ControllerService::Stream(
    grpc::CallbackServerContext* context) {
  {
    const MutexLock lock(&mutex_);
    ++streams_;
  }
  return RankStream::Start(manager_, limits_, &budget_, [this] {
    const MutexLock lock(&mutex_);
    --streams_;
    idle_.NotifyAll();  // with the lock, since the service may go as soon as it is idle
  });
}

void ControllerService::WaitForStreams() {
  const MutexLock lock(&mutex_);
  while (streams_ > 0) idle_.Wait(&mutex_);
}

}  // namespace egeria::controller
