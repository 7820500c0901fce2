#ifndef EGERIA_TESTS_CLUSTER_TEST_CLUSTER_H_
#define EGERIA_TESTS_CLUSTER_TEST_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/job/job_manager.h"
#include "controller/service/controller_server.h"
#include "egeria/v1/admin.grpc.pb.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tests/support/fake_evaluator.h"
#include "tests/support/job_fixtures.h"

namespace egeria::testing {

using controller::ControllerServer;
using controller::JobManager;
using controller::JobManagerOptions;

// A channel that connects on first use and anew when the connection is lost, as that of any client of gRPC.
std::shared_ptr<grpc::Channel> TestChannel(const std::string& address);

// One rank that speaks to a controller over real gRPC, one message at a time, as a test tells it.
// Every call fails the stream rather than hang: the whole stream has a deadline of a minute.
// Thread-compatible; owned by the test.
class SimulatedRank {
 public:
  SimulatedRank(std::shared_ptr<grpc::Channel> channel, v1::RegisterJobRequest job, int rank, uint64_t incarnation = 0);
  ~SimulatedRank() { Cut(); }

  grpc::Status Register(v1::RegisterJobResponse* response = nullptr);
  // Opens the stream and waits for the first directive; false if the controller ends it instead.
  bool Open();
  // Register() and Open(), which must succeed.
  void Connect();

  bool Send(const v1::WorkerMessage& message) { return stream_->Write(message); }
  bool Send(const TestUpload& upload, size_t chunk = size_t{1} << 20);
  // Sends a heartbeat as this rank now is (`heartbeat` below) and waits for a directive, which must come. It
  // may have been on its way before the heartbeat.
  v1::Directive Beat();
  // The same, but waits for a directive that is `wanted`.
  v1::Directive BeatUntil(const std::function<bool(const v1::Directive&)>& wanted);
  v1::Directive BeatAt(int64_t step) {
    heartbeat.set_step(step);
    return Beat();
  }

  // The next message; empty when the stream has ended.
  std::optional<v1::ControllerMessage> Read();
  // Reads on until a directive fulfils `wanted` or the stream ends.
  std::optional<v1::Directive> ReadDirective(const std::function<bool(const v1::Directive&)>& wanted);
  std::optional<v1::UploadResult> ReadUploadResult();

  // Takes a snapshot if one is wanted by the newest directive, then the next sample. True if a sample was
  // sent.
  bool Serve(const v1::Directive& directive, int64_t step);

  // Ends the stream as a dying process does, without a word.
  void Cut();
  // Half-closes, and returns the status with which the controller ends the stream.
  grpc::Status Finish();
  // The status of a stream that the controller has ended.
  grpc::Status Status();

  v1::Heartbeat heartbeat;
  const v1::RegisterJobRequest& job() const { return job_; }
  v1::RegisterJobRequest& job() { return job_; }
  int64_t NextUploadId() { return ++upload_id_; }

 private:
  v1::RegisterJobRequest job_;
  const int rank_;
  const uint64_t incarnation_;
  std::unique_ptr<v1::Controller::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>> stream_;
  int64_t upload_id_ = 0;
  int64_t snapshot_sent_ = 0;
};

// A real controller in this process, on a Unix socket in a folder of its own, with a scripted evaluator.
// Restart() ends it and starts another on the same journal and socket.
class TestCluster {
 public:
  explicit TestCluster(FakeEvaluator::Script script = nullptr, JobManagerOptions options = {});
  ~TestCluster() { Stop(); }

  void Start();
  void Stop();
  void Restart() {
    Stop();
    Start();
  }

  JobManager* manager() { return manager_.get(); }
  ControllerServer* server() { return server_.get(); }
  FakeEvaluator* evaluator() { return evaluator_; }
  std::string address() const { return "unix:" + folder_.path() + "/socket"; }
  std::string journal_folder() const { return folder_.path() + "/journal"; }
  std::shared_ptr<grpc::Channel> Channel() const { return TestChannel(address()); }
  std::unique_ptr<v1::Admin::Stub> Admin() const { return v1::Admin::NewStub(TestChannel(address() + ".admin")); }
  // A rank of this cluster, not yet connected.
  std::unique_ptr<SimulatedRank> Rank(const v1::RegisterJobRequest& job, int rank, uint64_t incarnation = 0) const;
  v1::JobSummary Summary(const std::string& job_id) const;

 private:
  TempFolder folder_;
  FakeEvaluator::Script script_;
  JobManagerOptions options_;
  FakeEvaluator* evaluator_ = nullptr;
  std::unique_ptr<JobManager> manager_;
  std::unique_ptr<ControllerServer> server_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_CLUSTER_TEST_CLUSTER_H_
