#include "worker/cache/client/attachment.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "common/thread/thread.h"

namespace egeria::cache {
namespace {

constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::milliseconds kLongestPause{64'000};

}  // namespace

void Attachment::Start(std::function<void(const Line&)> changed) {
  changed_ = std::move(changed);
  thread_ = StartThread("cache-attach", [this] { AttachUntilStopped(); });
}

void Attachment::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  stopped_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Line Attachment::line() const {
  const MutexLock lock(&mutex_);
  return line_;
}

void Attachment::GiveUp(const Line& line) {
  const MutexLock lock(&mutex_);
  if (line_.attachment != line.attachment) return;
  Change({});
  gave_up_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

void Attachment::Answered(const Line& line) {
  const MutexLock lock(&mutex_);
  if (line_.attachment == line.attachment) pause_ = kFirstPause;
}

int64_t Attachment::count() const {
  const MutexLock lock(&mutex_);
  return count_;
}

bool Attachment::streamed() const {
  const MutexLock lock(&mutex_);
  return streamed_;
}

void Attachment::AttachUntilStopped() {
  for (;;) {
    AttachOnce();
    const MutexLock lock(&mutex_);
    std::chrono::milliseconds wait = kRetry;
    if (std::exchange(gave_up_, false)) {
      wait = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    const auto deadline = std::chrono::steady_clock::now() + wait;
    while (!stopping_ && stopped_.WaitUntil(&mutex_, deadline)) {
    }
    if (stopping_) return;
  }
}

void Attachment::AttachOnce() {
  // Memory is reserved only for a daemon that is there.
  const auto channel = rpc::MakeChannel(options_.address, {});
  if (!channel.ok()) {
    const bool refused = absl::IsPermissionDenied(channel.status());
    if (refused && !std::exchange(told_of_owner_, true)) LogWarning("there is no cache: ", channel.status().message());
    return;
  }
  const std::shared_ptr<v1::Cache::Stub> stub = v1::Cache::NewStub(*channel);
  std::shared_ptr<SharedMemory> memory = MakeMemory();
  grpc::ClientContext context;
  {
    const MutexLock lock(&mutex_);
    if (stopping_) return;
    context_ = &context;
  }
  const auto stream = stub->Attach(&context);
  v1::AttachRequest request;
  request.set_namespace_(options_.name.text());
  request.set_quota_bytes(options_.quota_bytes);
  if (memory != nullptr) {
    request.set_shared_memory_descriptor(memory->descriptor());
    request.set_shared_memory_bytes(static_cast<int64_t>(memory->bytes().size()));
  }
  v1::AttachResponse response;
  if (stream->Write(request) && stream->Read(&response)) {
    if (!response.shared_memory()) memory.reset();
    if (response.quota_bytes() < options_.quota_bytes && !std::exchange(told_of_quota_, true)) {
      LogWarning("the cache keeps ", response.quota_bytes(), " bytes of this job, not ", options_.quota_bytes,
                 ": egeria-cache's own quota_per_job or quota is less");
    }
    {
      const MutexLock lock(&mutex_);
      streamed_ = memory == nullptr;
      Change({response.session(), memory, ++count_, stub});
    }
    stream->Read(&response);  // until the daemon, GiveUp() or Stop() ends it
  }
  {
    const MutexLock lock(&mutex_);
    Change({});
    context_ = nullptr;
  }
  context.TryCancel();
  stream->Finish();
}

std::shared_ptr<SharedMemory> Attachment::MakeMemory() {
  absl::StatusOr<std::shared_ptr<SharedMemory>> memory = SharedMemory::Create(options_.shared_bytes);
  if (memory.ok()) return *std::move(memory);
  if (!told_of_streaming_) LogInfo("the cache's entries are streamed: ", memory.status().message());
  told_of_streaming_ = true;
  return nullptr;
}

void Attachment::Change(Line line) {
  line_ = std::move(line);
  changed_(line_);
}

}  // namespace egeria::cache
