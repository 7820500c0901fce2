#include "tests/cluster/test_cluster.h"

#include <chrono>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "gtest/gtest.h"

namespace egeria::testing {

SimulatedRank::SimulatedRank(std::shared_ptr<grpc::Channel> channel, v1::RegisterJobRequest job, int rank,
                             uint64_t incarnation)
    : job_(std::move(job)),
      rank_(rank),
      incarnation_(incarnation != 0 ? incarnation : static_cast<uint64_t>(1'000 + rank)),
      stub_(v1::Controller::NewStub(channel)) {}

grpc::Status SimulatedRank::Register(v1::RegisterJobResponse* response) {
  v1::RegisterJobResponse ignored;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  context.set_wait_for_ready(true);
  return stub_->RegisterJob(&context, job_, response != nullptr ? response : &ignored);
}

bool SimulatedRank::Open() {
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  context_->set_wait_for_ready(true);
  stream_ = stub_->Stream(context_.get());
  v1::WorkerMessage message;
  message.mutable_open()->set_job_id(job_.job_id());
  message.mutable_open()->set_generation(job_.generation());
  message.mutable_open()->set_rank(rank_);
  message.mutable_open()->set_incarnation(incarnation_);
  return Send(message) && Read().has_value();
}

void SimulatedRank::Connect() {
  const grpc::Status registered = Register();
  ASSERT_TRUE(registered.ok()) << registered.error_message();
  ASSERT_TRUE(Open()) << Status().error_message();
}

bool SimulatedRank::Send(const TestUpload& upload, size_t chunk) {
  for (const v1::WorkerMessage& message : MessagesOf(upload, chunk)) {
    if (!Send(message)) return false;
  }
  return true;
}

v1::Directive SimulatedRank::Beat() {
  return BeatUntil([](const v1::Directive&) { return true; });
}

v1::Directive SimulatedRank::BeatUntil(const std::function<bool(const v1::Directive&)>& wanted) {
  v1::WorkerMessage message;
  *message.mutable_heartbeat() = heartbeat;
  if (!Send(message)) return {};
  auto directive = ReadDirective(wanted);
  EXPECT_TRUE(directive.has_value()) << "the stream has ended";
  return directive.value_or(v1::Directive());
}

std::optional<v1::ControllerMessage> SimulatedRank::Read() {
  v1::ControllerMessage message;
  if (!stream_->Read(&message)) return std::nullopt;
  return message;
}

std::optional<v1::Directive> SimulatedRank::ReadDirective(const std::function<bool(const v1::Directive&)>& wanted) {
  while (auto message = Read()) {
    if (message->has_directive() && wanted(message->directive())) return message->directive();
  }
  return std::nullopt;
}

std::optional<v1::UploadResult> SimulatedRank::ReadUploadResult() {
  while (auto message = Read()) {
    if (message->has_upload_result()) return message->upload_result();
  }
  return std::nullopt;
}

bool SimulatedRank::Serve(const v1::Directive& directive, int64_t step) {
  if (directive.has_snapshot() && directive.snapshot().version() > snapshot_sent_) {
    snapshot_sent_ = directive.snapshot().version();
    for (int i = directive.snapshot().first_module(); i <= directive.snapshot().module(); ++i) {
      Send(SnapshotUpload(NextUploadId(), directive.snapshot(), i, step));
    }
    return false;
  }
  if (!directive.has_sampling()) return false;
  return Send(SampleUpload(NextUploadId(), directive.sampling(), step));
}

void SimulatedRank::Cut() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  stream_->Finish();
  stream_.reset();
  context_.reset();
}

grpc::Status SimulatedRank::Finish() {
  stream_->WritesDone();
  return Status();
}

grpc::Status SimulatedRank::Status() {
  v1::ControllerMessage rest;
  while (stream_->Read(&rest)) {
  }
  grpc::Status status = stream_->Finish();
  stream_.reset();
  context_.reset();
  return status;
}

std::shared_ptr<grpc::Channel> TestChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(rpc::kMaxResponseBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

TestCluster::TestCluster(FakeEvaluator::Script script, JobManagerOptions options)
    : script_(std::move(script)), options_(std::move(options)) {
  if (!script_) script_ = [](const JobId&, int, int64_t) { return 0.001; };
  Start();
}

void TestCluster::Start() {
  auto journal = controller::Journal::Open(journal_folder());
  EGERIA_CHECK(journal.ok());
  auto manager = JobManager::Start(
      options_, *std::move(journal),
      [this](reference::Evaluator::Callback on_result) -> absl::StatusOr<std::unique_ptr<reference::Evaluator>> {
        auto fake = std::make_unique<FakeEvaluator>(std::move(on_result), script_);
        evaluator_ = fake.get();
        return std::unique_ptr<reference::Evaluator>(std::move(fake));
      });
  EGERIA_CHECK(manager.ok());
  manager_ = *std::move(manager);
  ControllerServer::Options options;
  options.listen = {*rpc::ParseAddress(address())};
  options.admin_listen = *rpc::AdminAddress(options.listen[0]);
  auto server = ControllerServer::Start(options, manager_.get());
  if (!server.ok()) ADD_FAILURE() << server.status();
  EGERIA_CHECK(server.ok());
  server_ = *std::move(server);
}

void TestCluster::Stop() {
  if (manager_ == nullptr) return;
  manager_->Stop();
  server_.reset();
  manager_.reset();
  evaluator_ = nullptr;
}

std::unique_ptr<SimulatedRank> TestCluster::Rank(const v1::RegisterJobRequest& job, int rank,
                                                 uint64_t incarnation) const {
  return std::make_unique<SimulatedRank>(Channel(), job, rank, incarnation);
}

v1::JobSummary TestCluster::Summary(const std::string& job_id) const {
  const v1::ListJobsResponse jobs = manager_->ListJobs();
  for (const v1::JobSummary& job : jobs.jobs()) {
    if (job.job_id() == job_id) return job;
  }
  return {};
}

}  // namespace egeria::testing
