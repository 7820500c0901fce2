#ifndef EGERIA_TESTS_SUPPORT_FAKE_CONTROLLER_H_
#define EGERIA_TESTS_SUPPORT_FAKE_CONTROLLER_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "egeria/v1/controller.grpc.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/support/sync_stream.h"

namespace egeria::testing {

// An upload as it arrived, put together from its chunks.
struct ReceivedUpload {
  v1::UploadBegin begin;
  std::string bytes;
  std::vector<size_t> chunk_sizes;
};

// All that a fake controller was told, in the order of arrival.
struct FakeControllerRecord {
  std::vector<v1::RegisterJobRequest> registrations;
  std::vector<v1::Open> opens;
  std::map<int, std::vector<v1::Heartbeat>> heartbeats;  // by rank
  std::vector<ReceivedUpload> uploads;                   // complete ones
  std::vector<v1::Reading> readings;
  std::vector<v1::GradientReading> gradients;
  std::vector<absl::Status> violations;  // breaches of the protocol; a test expects none
  int half_closes = 0;
  int open_streams = 0;
};

// A controller without a mind: a real gRPC server on a Unix socket that keeps what it is told and says what a
// test has told it to say. It answers every heartbeat with the present directive, in which it puts those of
// its plans that are above the heartbeat's watermark; every change of what it says is sent at once to all
// open streams.
//
// Thread-safe. Stop() breaks all streams; Start() may follow it. The destructor stops.
class FakeController {
 public:
  // Listens on `socket_path`, an absolute path in a folder that exists.
  explicit FakeController(std::string socket_path);
  ~FakeController();

  absl::Status Start();
  void Stop();
  std::string address() const { return "unix:" + socket_path_; }

  // Its answers. A directive's plans and generation are filled in from SetPlans() and the stream's Open.
  void SetDirective(const v1::Directive& directive);
  void SetPlans(std::vector<v1::Plan> plans);
  void SetRegisterResponse(const v1::RegisterJobResponse& response);
  // Sends a message as it is to every open stream.
  void Send(const v1::ControllerMessage& message);
  // From now on, answers registrations, or ends new streams, with this.
  void RefuseRegistrations(const absl::Status& status);
  void RefuseStreams(const absl::Status& status);
  // While held, messages that come in stay unread, and the sender is held back by flow control.
  void HoldReading(bool hold);
  // While mute, it gives no answers.
  void SetMute(bool mute);

  FakeControllerRecord record() const;
  void ClearRecord();

  // Waits until `condition` holds of the record; false after `patience`.
  bool WaitUntil(const std::function<bool(const FakeControllerRecord&)>& condition,
                 std::chrono::seconds patience = std::chrono::seconds(30));

 private:
  using ServerStream = grpc::ServerReaderWriter<v1::ControllerMessage, v1::WorkerMessage>;
  class Service;

  // One open stream. Fields after the first are guarded by mutex_, but for `writing`, which keeps two
  // threads from writing to the stream at once.
  struct Client {
    ServerStream* stream = nullptr;
    std::mutex writing;
    v1::Open open;
    int64_t watermark = 0;
    bool opened = false;
  };

  grpc::Status HandleRegister(const v1::RegisterJobRequest& request, v1::RegisterJobResponse* response);
  grpc::Status HandleStream(ServerStream* stream);
  void HandleMessage(const std::shared_ptr<Client>& client, const v1::WorkerMessage& message);
  void HandleChunk(const v1::UploadChunk& chunk, std::map<int64_t, ReceivedUpload>* unfinished);
  void Answer(const std::shared_ptr<Client>& client);
  void AnswerAll();

  const std::string socket_path_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  FakeControllerRecord record_;
  std::map<int64_t, ReceivedUpload> unfinished_;
  std::set<std::shared_ptr<Client>> clients_;
  v1::Directive directive_;
  std::vector<v1::Plan> plans_;
  v1::RegisterJobResponse register_response_;
  absl::Status register_refusal_;
  absl::Status stream_refusal_;
  bool hold_reading_ = false;
  bool mute_ = false;
  bool stopping_ = false;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_FAKE_CONTROLLER_H_
