// egeria-reference: evaluates reference models for egeria-controller, which starts it and talks to it over descriptor
// 3. Descriptor 4 is memory in which tensors lie. Ends with its parent.
//
// Exit status: 0 at the end of the descriptor; 1 where it cannot work; 2 where a person has started it.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/graph/graph_proto.h"
#include "controller/engine/engine.h"
#include "controller/engine/sandbox.h"
#include "controller/reference/message_frame.h"
#include "egeria/engine/v1/engine.pb.h"

namespace egeria::reference {
namespace {

constexpr int kSocket = 3, kMemory = 4;

// This holds what has been read and not been taken yet. Requests wait in line, and one read may bring several.
class Inbox {
 public:
  // False at the end, or where a message is cut off.
  bool Receive(google::protobuf::MessageLite* message) {
    std::optional<std::string> found;
    while (!(found = TakeFrame(&text_)).has_value()) {
      char buffer[1 << 16];
      const ssize_t got = read(kSocket, buffer, sizeof(buffer));
      if (got == 0 || (got < 0 && errno != EINTR)) return false;
      text_.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
    }
    return message->ParseFromString(*found);
  }

 private:
  std::string text_;
};

bool Send(const google::protobuf::MessageLite& message) {
  std::string text;
  AppendFrame(message, &text);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t wrote = write(kSocket, text.data() + sent, text.size() - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    sent += static_cast<size_t>(wrote);
  }
  return true;
}

void SetStatus(const absl::Status& status, engine::v1::Reply* reply) {
  reply->set_code(static_cast<int>(status.code()));
  reply->set_message(std::string(status.message().substr(0, 4096)));
}

// The memory that tensors lie in.
class Memory {
 public:
  absl::Status Map() {
    struct stat status{};
    if (fstat(kMemory, &status) != 0) return absl::InternalError("descriptor 4 is missing");
    size_ = static_cast<size_t>(status.st_size);
    void* start = mmap(nullptr, size_, PROT_READ, MAP_SHARED | MAP_NORESERVE, kMemory, 0);
    if (start == MAP_FAILED) return absl::InternalError("descriptor 4 cannot be mapped");
    start_ = static_cast<const std::byte*>(start);
    return absl::OkStatus();
  }

  absl::StatusOr<WireTensor> At(const engine::v1::Tensor& tensor) const {
    EGERIA_ASSIGN_OR_RETURN(TensorSpec spec, FromProto(tensor.spec()));
    EGERIA_ASSIGN_OR_RETURN(const size_t bytes, ByteSize(spec));
    if (tensor.offset() > size_ || bytes > size_ - tensor.offset()) {
      return absl::InternalError("a tensor lies beyond the end of the memory");
    }
    return WireTensor{std::move(spec), {start_ + tensor.offset(), bytes}, nullptr};
  }

  absl::StatusOr<std::vector<WireTensor>> At(const google::protobuf::RepeatedPtrField<engine::v1::Tensor>& list) const {
    std::vector<WireTensor> tensors;
    for (const engine::v1::Tensor& tensor : list) {
      EGERIA_ASSIGN_OR_RETURN(WireTensor found, At(tensor));
      tensors.push_back(std::move(found));
    }
    return tensors;
  }

 private:
  const std::byte* start_ = nullptr;
  size_t size_ = 0;
};

absl::StatusOr<EngineTask> TaskOf(const engine::v1::Request& request, const Memory& memory) {
  EngineTask task;
  for (const engine::v1::Module& given : request.modules()) {
    EngineModule& module = task.modules.emplace_back();
    module.id = given.id();
    module.snapshot = given.snapshot();
    if (given.has_graph()) {
      EGERIA_ASSIGN_OR_RETURN(module.graph, graph::FromProto(given.graph()));
    }
    if (given.has_weights()) {
      EGERIA_ASSIGN_OR_RETURN(module.weights, memory.At(given.weights()));
    }
  }
  EGERIA_ASSIGN_OR_RETURN(task.sample, memory.At(request.sample()));
  if (task.sample.empty()) return absl::InternalError("a sample without tensors");
  if (request.norm()) task.metric = plasticity::ActivationMetric::kActivationNorm;
  return task;
}

engine::v1::Reply Answer(const engine::v1::Request& request, const Memory& memory, Engine* engine) {
  engine::v1::Reply reply;
  for (int64_t id : request.forget()) engine->Forget(id);
  if (request.modules().empty()) return reply;
  absl::StatusOr<EngineTask> task = TaskOf(request, memory);
  if (!task.ok()) {
    SetStatus(task.status(), &reply);
    return reply;
  }
  const EngineAnswer answer = engine->Evaluate(*std::move(task));
  reply.set_graph_refused(answer.graph_refused);
  SetStatus(answer.reading.status(), &reply);
  if (!answer.reading.ok()) return reply;
  reply.set_plasticity(answer.reading->plasticity);
  reply.set_backend(answer.reading->backend);
  reply.set_compute_seconds(absl::ToDoubleSeconds(answer.reading->compute));
  return reply;
}

absl::StatusOr<std::unique_ptr<Engine>> Prepare(const engine::v1::Setup& setup, Memory* memory) {
  EGERIA_RETURN_IF_ERROR(memory->Map());
  EGERIA_ASSIGN_OR_RETURN(auto engine, Engine::Create({.threads = setup.threads(),
                                                       .backends = {setup.backends().begin(), setup.backends().end()},
                                                       .memory_bytes = setup.memory_bytes(),
                                                       .max_time_of_a_run = absl::Seconds(setup.seconds_a_run())}));
  const std::string open = EnterSandbox(setup.memory_bytes() + setup.packed_bytes());
  if (!open.empty()) LogWarning("system calls are not filtered: ", open);
  return engine;
}

// Every reading allocates the same tensors anew. Pages that the allocator gives back between two readings have to be
// cleared again for the next one, which takes as long as some readings do. And each large tensor that is freed would
// have the allocator go through all small pieces that are free.
void KeepFreedPages() {
  mallopt(M_MXFAST, 0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it may be
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

int Main(int argc, char** argv) {
  pid_t parent = 0;
  struct stat status{};
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &parent) || fstat(kSocket, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::cerr << "egeria-reference: egeria-controller starts this program; there is no use in starting it by hand\n";
    return 2;
  }
  KeepFreedPages();
  BindToParent(parent, kMemory + 1);
  ConfigureLogging("egeria-reference", LogLevel::kWarning);
  Inbox inbox;
  engine::v1::Setup setup;
  if (!inbox.Receive(&setup)) return 1;
  Memory memory;
  const absl::StatusOr<std::unique_ptr<Engine>> engine = Prepare(setup, &memory);
  engine::v1::Reply ready;
  ready.set_version(Version());
  SetStatus(engine.status(), &ready);
  if (!Send(ready) || !engine.ok()) return 1;
  engine::v1::Request request;
  while (inbox.Receive(&request)) {
    if (!Send(Answer(request, memory, engine->get()))) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace egeria::reference

// Without the destructors of libraries: whatever a graph has done to this process, it ends now.
int main(int argc, char** argv) { _exit(egeria::reference::Main(argc, argv)); }
