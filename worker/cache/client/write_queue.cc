#include "worker/cache/client/write_queue.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "common/rpc/channel.h"
#include "common/thread/thread.h"

namespace egeria::cache {
namespace {

constexpr std::chrono::seconds kPatience{5};
// At most so many requests to forget wait for the daemon; older ones are left to eviction.
constexpr size_t kMaxOwed = 64;
constexpr size_t kMaxStreamedWrite = size_t{16} << 20;

// A daemon that starts with the job takes a moment, in which the first batches are computed.
constexpr std::chrono::seconds kFirstLine{5};

using Entries = std::vector<std::vector<std::byte>>;
using PutWriter = grpc::ClientWriterInterface<v1::PutRequest>;

// Copies the entries into the shared memory, one to a slot of so many bytes, and sends the request that says where.
// Returns whether they fit, and it was sent.
bool SendInMemory(const Line& line, size_t slot, const Entries& entries, v1::PutRequest& request, PutWriter& writer) {
  if (slot * entries.size() > line.part()) return false;
  request.set_offset(static_cast<int64_t>(line.writes_begin()));
  request.set_stride(static_cast<int64_t>(slot));
  std::byte* to = line.memory->bytes().data() + line.writes_begin();
  for (const std::vector<std::byte>& entry : entries) {
    std::memcpy(to, entry.data(), entry.size());
    to += slot;
  }
  return writer.Write(request);
}

// Sends the request, and behind it the entries in pieces. Returns whether all were sent.
bool SendAsChunks(const Entries& entries, v1::PutRequest& request, PutWriter& writer) {
  if (!writer.Write(request)) return false;
  for (const std::vector<std::byte>& entry : entries) {
    for (size_t sent = 0; sent < entry.size();) {
      const size_t bytes = std::min(rpc::kMaxChunkBytes, entry.size() - sent);
      request.Clear();
      request.set_data(entry.data() + sent, bytes);
      if (!writer.Write(request)) return false;
      sent += bytes;
    }
  }
  return true;
}

}  // namespace

WriteQueue::WriteQueue(const CacheClient::Options& options, Attachment* attachment)
    : queue_bytes_(options.queue_bytes), attachment_(*attachment), maker_(options.name, options.format) {}

void WriteQueue::Start() {
  {
    const MutexLock lock(&mutex_);
    first_line_by_ = std::chrono::steady_clock::now() + kFirstLine;
  }
  thread_ = StartThread("cache-write", [this] { WorkUntilStopped(); });
}

void WriteQueue::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void WriteQueue::Follow(const Line& line) {
  {
    const MutexLock lock(&mutex_);
    line_ = line;
    if (line.session == 0) return;
    first_line_by_ = {};
    tasks_.insert(tasks_.begin(), owed_.begin(), owed_.end());
    owed_.clear();
  }
  changed_.NotifyAll();
}

int64_t WriteQueue::Offer(const Fingerprint& prefix, std::span<const CacheClient::Offered> entries) {
  std::vector<Task> taken;
  for (const auto& [sample, input_hash, tensors] : entries) {
    if (!Reserve(prefix, EntrySize(tensors))) continue;  // before they are copied
    taken.emplace_back(Write(prefix, sample, input_hash, tensors));
  }
  Push(taken);
  return static_cast<int64_t>(taken.size());
}

void WriteQueue::Drop(const Fingerprint& prefix) { Push(Forget{prefix, {}}); }

void WriteQueue::DropSamples(const Fingerprint& prefix, std::vector<uint64_t> samples) {
  Push(Forget{prefix, std::move(samples)});
}

bool WriteQueue::Reserve(const Fingerprint& prefix, size_t bytes) {
  const MutexLock lock(&mutex_);
  ++counters_.offered;
  const size_t longest = std::min(queue_bytes_, line_.memory != nullptr ? line_.part() : kMaxStreamedRead);
  if (SlotOf(bytes) > longest) {
    ++counters_.refused;
    if (std::exchange(too_long_, prefix) != prefix) {
      LogWarning("[ENTRY_TOO_LONG] the activations of a sample take ", bytes, " bytes, more than the ", longest,
                 " of an entry of the cache; such samples are computed");
    }
    return false;
  }
  const bool room = !stopping_ && queued_bytes_ + bytes <= queue_bytes_;
  if (room) queued_bytes_ += bytes;
  counters_.dropped += !room;
  return room;
}

void WriteQueue::Push(std::span<Task> tasks) {
  {
    const MutexLock lock(&mutex_);
    if (stopping_) return;
    std::move(tasks.begin(), tasks.end(), std::back_inserter(tasks_));
  }
  changed_.NotifyAll();
}

bool WriteQueue::Flush(absl::Duration patience) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(patience);
  const MutexLock lock(&mutex_);
  while (!IsIdle() && changed_.WaitUntil(&mutex_, deadline)) {
  }
  return IsIdle();
}

void WriteQueue::CountOffering(absl::Duration taken) {
  const MutexLock lock(&mutex_);
  counters_.offer_seconds += absl::ToDoubleSeconds(taken);
}

CacheClient::WriteCounters WriteQueue::counters() const {
  const EntryMaker::Report report = maker_.report();
  const MutexLock lock(&mutex_);
  CacheClient::WriteCounters counters = counters_;
  counters.exact_bytes = report.exact_bytes;
  counters.format_bytes = report.bytes;
  counters.rounding = report.rounding.root_mean_square();
  counters.largest_rounding = report.rounding.largest();
  return counters;
}

void WriteQueue::WorkUntilStopped() {
  SetBackground(gettid(), true);
  for (;;) {
    Batch batch;
    {
      const MutexLock lock(&mutex_);
      working_ = false;
      changed_.NotifyAll();
      while (!stopping_ && tasks_.empty()) changed_.Wait(&mutex_);
      while (!stopping_ && AwaitsFirstLine() && changed_.WaitUntil(&mutex_, first_line_by_)) {
      }
      if (stopping_) return;
      working_ = true;
      batch = TakeBatch();
      if (batch.line.session == 0) {
        counters_.dropped += static_cast<int64_t>(batch.writes.size());
        if (batch.forget) Owe(*std::move(batch.forget));
        continue;
      }
    }
    if (batch.forget) {
      Send(batch.line, *batch.forget);
    } else {
      WriteSome(batch.line, std::move(batch.writes));
    }
  }
}

WriteQueue::Batch WriteQueue::TakeBatch() {
  Batch batch;
  batch.line = line_;
  if (const auto* forget = std::get_if<Forget>(&tasks_.front())) {
    batch.forget = *forget;
    tasks_.pop_front();
    return batch;
  }
  const size_t most = line_.memory != nullptr ? line_.part() : kMaxStreamedWrite;
  size_t slot = 0;
  while (!tasks_.empty() && batch.writes.size() < kMaxSamplesPerCall) {
    auto* write = std::get_if<Write>(&tasks_.front());
    if (write == nullptr) break;
    slot = std::max(slot, SlotOf(write->exact_bytes));
    if (!batch.writes.empty()) {
      const bool fits = slot * (batch.writes.size() + 1) <= most;
      if (!fits || write->prefix != batch.writes.front().prefix) break;
    }
    queued_bytes_ -= write->exact_bytes;
    batch.writes.push_back(std::move(*write));
    tasks_.pop_front();
  }
  return batch;
}

void WriteQueue::WriteSome(const Line& line, std::vector<Write> writes) {
  const absl::Duration begin = ThreadCpuTime();
  size_t slot = 0;
  v1::PutRequest request;
  request.set_session(line.session);
  request.set_fingerprint(RawBytes(writes[0].prefix));
  Entries entries;
  for (Write& write : writes) {
    request.add_samples(write.sample);
    entries.push_back(maker_.Make(std::move(write)));
    slot = std::max(slot, SlotOf(entries.back().size()));
    request.add_lengths(static_cast<uint32_t>(entries.back().size()));
  }
  grpc::ClientContext context;
  if (!Begin(&context)) return;
  v1::PutResponse response;
  const auto writer = line.stub->Put(&context, &response);
  bool good = line.memory != nullptr ? SendInMemory(line, slot, entries, request, *writer)
                                     : SendAsChunks(entries, request, *writer);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  // The daemon may still read this memory, so that it is not written to again.
  if (line.memory != nullptr && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) attachment_.GiveUp(line);
  good = status.ok() && good;
  if (good) maker_.NoteFullness(response.fullness());
  const MutexLock lock(&mutex_);
  context_ = nullptr;
  const auto stored = static_cast<int64_t>(response.stored() + response.present());
  counters_.stored += good ? stored : 0;
  counters_.write_seconds += absl::ToDoubleSeconds(ThreadCpuTime() - begin);
  counters_.daemon_seconds += response.processor_seconds();
  counters_.refused += static_cast<int64_t>(entries.size()) - (good ? stored : 0);
}

void WriteQueue::Send(const Line& line, const Forget& forget) {
  v1::DropRequest request;
  request.set_session(line.session);
  request.set_fingerprint(RawBytes(forget.prefix));
  request.set_scope(forget.samples.empty() ? v1::DropRequest::PREFIX : v1::DropRequest::SAMPLES);
  request.mutable_samples()->Add(forget.samples.begin(), forget.samples.end());
  v1::DropResponse response;
  grpc::ClientContext context;
  if (!Begin(&context)) return;
  const grpc::Status status = line.stub->Drop(&context, request, &response);
  const MutexLock lock(&mutex_);
  context_ = nullptr;
  if (!status.ok()) Owe(forget);
}

void WriteQueue::Owe(Forget forget) {
  if (owed_.size() == kMaxOwed) owed_.pop_front();
  owed_.push_back(std::move(forget));
}

bool WriteQueue::Begin(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  const MutexLock lock(&mutex_);
  if (!stopping_) context_ = context;
  return !stopping_;
}

}  // namespace egeria::cache
