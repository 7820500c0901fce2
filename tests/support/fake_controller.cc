#include "tests/support/fake_controller.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/server.h"
#include "grpcpp/security/server_credentials.h"

namespace egeria::testing {
namespace {

size_t AnnouncedBytes(const v1::UploadBegin& begin) {
  static constexpr size_t kElement[] = {0, 4, 8, 2, 2, 8, 4, 1, 1, 1};  // by v1::DataType
  size_t total = 0;
  for (const v1::TensorSpec& tensor : begin.tensors()) {
    size_t bytes = kElement[tensor.dtype()];
    for (int64_t dimension : tensor.shape()) bytes *= static_cast<size_t>(dimension);
    total += bytes;
  }
  return total;
}

}  // namespace

class FakeController::Service final : public v1::Controller::Service {
 public:
  explicit Service(FakeController* controller) : controller_(controller) {}

  grpc::Status RegisterJob(grpc::ServerContext*, const v1::RegisterJobRequest* request,
                           v1::RegisterJobResponse* response) override {
    return controller_->HandleRegister(*request, response);
  }
  grpc::Status Stream(grpc::ServerContext*, ServerStream* stream) override { return controller_->HandleStream(stream); }

 private:
  FakeController* const controller_;
};

FakeController::FakeController(std::string socket_path)
    : socket_path_(std::move(socket_path)), service_(std::make_unique<Service>(this)) {
  register_response_.mutable_heartbeat_interval()->set_nanos(50'000'000);
}

FakeController::~FakeController() { Stop(); }

absl::Status FakeController::Start() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = false;
  }
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(&builder);
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::UnavailableError("cannot listen on " + address());
  return absl::OkStatus();
}

void FakeController::Stop() {
  if (server_ == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void FakeController::SetDirective(const v1::Directive& directive) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    directive_ = directive;
  }
  AnswerAll();
}

void FakeController::SetPlans(std::vector<v1::Plan> plans) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    plans_ = std::move(plans);
  }
  AnswerAll();
}

void FakeController::SetRegisterResponse(const v1::RegisterJobResponse& response) {
  std::lock_guard<std::mutex> lock(mutex_);
  register_response_ = response;
}

void FakeController::RefuseRegistrations(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  register_refusal_ = status;
}

void FakeController::RefuseStreams(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  stream_refusal_ = status;
}

void FakeController::HoldReading(bool hold) {
  std::lock_guard<std::mutex> lock(mutex_);
  hold_reading_ = hold;
  changed_.notify_all();
}

void FakeController::SetMute(bool mute) {
  std::lock_guard<std::mutex> lock(mutex_);
  mute_ = mute;
}

void FakeController::Send(const v1::ControllerMessage& message) {
  std::set<std::shared_ptr<Client>> clients;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    clients = clients_;
  }
  for (const std::shared_ptr<Client>& client : clients) {
    std::lock_guard<std::mutex> writing(client->writing);
    if (client->stream != nullptr) client->stream->Write(message);
  }
}

FakeControllerRecord FakeController::record() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return record_;
}

void FakeController::ClearRecord() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int open_streams = record_.open_streams;
  record_ = FakeControllerRecord();
  record_.open_streams = open_streams;
}

bool FakeController::WaitUntil(const std::function<bool(const FakeControllerRecord&)>& condition,
                               std::chrono::seconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return condition(record_); });
}

grpc::Status FakeController::HandleRegister(const v1::RegisterJobRequest& request, v1::RegisterJobResponse* response) {
  std::lock_guard<std::mutex> lock(mutex_);
  record_.registrations.push_back(request);
  changed_.notify_all();
  *response = register_response_;
  return rpc::ToGrpc(register_refusal_);
}

grpc::Status FakeController::HandleStream(ServerStream* stream) {
  const auto client = std::make_shared<Client>();
  client->stream = stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stream_refusal_.ok()) return rpc::ToGrpc(stream_refusal_);
    clients_.insert(client);
    unfinished_.clear();
    ++record_.open_streams;
    changed_.notify_all();
  }
  v1::WorkerMessage message;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !hold_reading_ || stopping_; });
    }
    if (!stream->Read(&message)) break;
    HandleMessage(client, message);
  }
  {
    std::lock_guard<std::mutex> writing(client->writing);
    client->stream = nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  clients_.erase(client);
  --record_.open_streams;
  ++record_.half_closes;
  changed_.notify_all();
  return grpc::Status::OK;
}

void FakeController::HandleMessage(const std::shared_ptr<Client>& client, const v1::WorkerMessage& message) {
  bool answer = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message.has_open() == client->opened) {
      record_.violations.push_back(absl::InvalidArgumentError("open is the first message, and only the first"));
    }
    if (message.has_open()) {
      client->opened = true;
      client->open = message.open();
      record_.opens.push_back(message.open());
    } else if (message.has_heartbeat()) {
      client->watermark = message.heartbeat().plan_watermark();
      record_.heartbeats[client->open.rank()].push_back(message.heartbeat());
      answer = true;
    } else if (message.has_upload_begin()) {
      const int64_t id = message.upload_begin().upload_id();
      if (!unfinished_.empty()) record_.violations.push_back(absl::InvalidArgumentError("two uploads at a time"));
      unfinished_[id].begin = message.upload_begin();
      if (AnnouncedBytes(message.upload_begin()) == 0) {
        record_.uploads.push_back(unfinished_[id]);
        unfinished_.erase(id);
      }
    } else if (message.has_reading()) {
      record_.readings.push_back(message.reading());
    } else if (message.has_gradients()) {
      record_.gradients.push_back(message.gradients());
    } else if (message.has_upload_chunk()) {
      HandleChunk(message.upload_chunk(), &unfinished_);
    }
    changed_.notify_all();
  }
  if (answer) Answer(client);
}

void FakeController::HandleChunk(const v1::UploadChunk& chunk, std::map<int64_t, ReceivedUpload>* unfinished) {
  const auto found = unfinished->find(chunk.upload_id());
  if (found == unfinished->end() || chunk.offset() != static_cast<int64_t>(found->second.bytes.size())) {
    record_.violations.push_back(absl::InvalidArgumentError("a chunk out of order"));
    return;
  }
  ReceivedUpload& upload = found->second;
  upload.bytes += chunk.data();
  upload.chunk_sizes.push_back(chunk.data().size());
  const size_t announced = AnnouncedBytes(upload.begin);
  if (upload.bytes.size() > announced) {
    record_.violations.push_back(absl::InvalidArgumentError("an upload that is longer than announced"));
  }
  if (upload.bytes.size() >= announced) {
    record_.uploads.push_back(std::move(upload));
    unfinished->erase(found);
  }
}

void FakeController::Answer(const std::shared_ptr<Client>& client) {
  std::lock_guard<std::mutex> writing(client->writing);
  v1::ControllerMessage message;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (mute_ || !client->opened) return;
    *message.mutable_directive() = directive_;
    message.mutable_directive()->set_generation(client->open.generation());
    for (const v1::Plan& plan : plans_) {
      if (plan.plan_id() > client->watermark) *message.mutable_directive()->add_plans() = plan;
    }
  }
  if (client->stream != nullptr) client->stream->Write(message);
}

void FakeController::AnswerAll() {
  std::set<std::shared_ptr<Client>> clients;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    clients = clients_;
  }
  for (const std::shared_ptr<Client>& client : clients) Answer(client);
}

}  // namespace egeria::testing
