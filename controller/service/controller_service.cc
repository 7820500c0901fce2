#include "controller/service/controller_service.h"

#include <vector>

#include "common/rpc/grpc_status.h"
#include "controller/service/rank_stream.h"

namespace egeria::controller {

grpc::ServerUnaryReactor* ControllerService::RegisterJob(grpc::CallbackServerContext* context,
                                                         const v1::RegisterJobRequest* request,
                                                         v1::RegisterJobResponse* response) {
  const rpc::Peer caller = rpc::PeerOf(*context);
  auto registered = manager_->registrar().Register(*request, caller);
  if (registered.ok()) *response = *std::move(registered);
  if (absl::IsPermissionDenied(registered.status()) && audit_ != nullptr) {
    audit_->Write(caller, {.action = "register_job", .job = request->job_id()}, registered.status());
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(registered.status()));
  return reactor;
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* ControllerService::Stream(
    grpc::CallbackServerContext* context) {
  int64_t number = 0;
  {
    const MutexLock lock(&mutex_);
    number = ++last_stream_;
    streams_[number];
  }
  const std::shared_ptr<RankStream> stream =
      RankStream::Start(manager_, rpc::PeerOf(*context), limits_, &budget_, [this, number] {
        const MutexLock lock(&mutex_);
        streams_.erase(number);
        idle_.NotifyAll();  // with the lock, since the service may go as soon as it is idle
      });
  const MutexLock lock(&mutex_);
  if (const auto entry = streams_.find(number); entry != streams_.end()) entry->second = stream;
  return stream.get();
}

void ControllerService::EndSilentStreams(absl::Time now) {
  std::vector<std::shared_ptr<RankStream>> streams;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [number, stream] : streams_) streams.push_back(stream.lock());
  }
  for (const std::shared_ptr<RankStream>& stream : streams) {
    if (stream != nullptr) stream->EndIfSilent(now);
  }
}

void ControllerService::WaitForStreams() {
  const MutexLock lock(&mutex_);
  while (!streams_.empty()) idle_.Wait(&mutex_);
}

}  // namespace egeria::controller
