#include "worker/cache/cache_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/thread/thread.h"
#include "egeria/v1/cache.grpc.pb.h"
#include "worker/cache/entry_maker.h"
#include "worker/cache/shared_memory.h"

namespace egeria::cache {
namespace {

constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::seconds kWritePatience{5};
constexpr std::chrono::milliseconds kFirstPause{1'000};
constexpr std::chrono::milliseconds kLongestPause{64'000};
constexpr size_t kSlotAlignment = 64;
constexpr size_t kMaxSamplesPerCall = 4'096;
constexpr size_t kMaxStreamedWrite = size_t{16} << 20;
constexpr size_t kMaxStreamedRead = size_t{64} << 20;  // the daemon holds no more than 256 MiB for a call
// Reading may take as long as at this rate, and no longer than this for what one call asks for.
constexpr double kSlowestBytesPerSecond = 100e6;
constexpr absl::Duration kLongestReading = absl::Milliseconds(650);

size_t SlotOf(size_t entry_bytes) { return (entry_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

std::string BytesOf(const Fingerprint& prefix) { return {reinterpret_cast<const char*>(prefix.data()), prefix.size()}; }

// What the writing thread does, in order.
using Write = PendingEntry;
struct Forget {
  Fingerprint prefix;
  v1::DropRequest::Scope scope;
  std::vector<uint64_t> samples;
};
using Task = std::variant<Write, Forget>;

v1::DropRequest::Scope ToProto(CacheClient::Scope scope) {
  switch (scope) {
    case CacheClient::Scope::kAll:
      return v1::DropRequest::ALL;
    case CacheClient::Scope::kOthers:
      return v1::DropRequest::OTHERS;
    case CacheClient::Scope::kPrefix:
      break;
  }
  return v1::DropRequest::PREFIX;
}

}  // namespace

class CacheClient::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), maker_(options.name, options.format) {
    auto channel = rpc::MakeChannel(options.address, {});
    if (!channel.ok()) {
      LogWarning("there is no cache: ", channel.status().message());
      return;
    }
    channel_ = *std::move(channel);
    stub_ = v1::Cache::NewStub(channel_);
  }

  void StartThreads(const std::shared_ptr<Impl>& self) {
    if (stub_ == nullptr) return;
    threads_.push_back(StartThread("cache-attach", [self] { self->AttachUntilStopped(); }));
    threads_.push_back(StartThread("cache-write", [self] { self->WriteUntilStopped(); }));
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      if (attach_context_ != nullptr) attach_context_->TryCancel();
      if (write_context_ != nullptr) write_context_->TryCancel();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<Outcome> Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples, size_t entry_bytes,
                              absl::FunctionRef<void(size_t, const Entry&)> found);
  void ForgetCorrupt(const Fingerprint& prefix, std::span<const uint64_t> samples,
                     const std::vector<Outcome>& outcomes);
  // Room in the queue for an offer, which is then to be pushed; false counts as one that was dropped, or refused where it
  // is longer than any can be.
  bool Reserve(const Fingerprint& prefix, size_t bytes);
  void Push(Task task);
  bool Flush(absl::Duration patience);

  bool attached() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return line_.session != 0;
  }
  Counters counters() const {
    const EntryMaker::Report report = maker_.report();
    const std::lock_guard<std::mutex> lock(mutex_);
    Counters counters = counters_;
    counters.exact_bytes = report.exact_bytes;
    counters.format_bytes = report.bytes;
    counters.rounding = report.rounding.root_mean_square();
    counters.largest_rounding = report.rounding.largest();
    return counters;
  }
  const Options& options() const { return options_; }

 private:
  // A session and the memory shared with it, which is null where bytes are streamed; the first half is for lookups, the
  // second for writes.
  struct Line {
    int64_t session = 0;  // 0: not attached
    std::shared_ptr<SharedMemory> memory;
    int64_t attachment = 0;  // numbers them; a daemon that was restarted begins anew with its sessions
    size_t half() const { return memory->bytes().size() / 2 / kSlotAlignment * kSlotAlignment; }
  };

  Line line() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return line_;
  }

  void AttachUntilStopped();
  void AttachOnce();
  std::shared_ptr<SharedMemory> MakeMemory();
  void WriteUntilStopped();
  void WriteSome(const Line& line, std::vector<Write> writes);  // all of one prefix
  void Send(const Line& line, const Forget& forget);
  // After a lookup that was not answered in time: this line is not used any more, since the daemon may still write into
  // its memory. The next one comes after a while, which doubles each time, so that a daemon that is stopped or overloaded
  // is hardly ever asked.
  void GiveUp(const Line& line);
  // Calls `arrived` for each entry of an answer in order, while the daemon reads on; an empty one is not there. False
  // where not all came in time.
  bool Fetch(const Line& line, const v1::GetRequest& request, absl::Time deadline,
             absl::FunctionRef<void(std::span<const std::byte> entry)> arrived);

  const Options options_;
  EntryMaker maker_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  bool told_of_streaming_ = false;
  bool told_of_quota_ = false;

  std::vector<std::thread> threads_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* attach_context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* write_context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Line line_ ABSL_GUARDED_BY(mutex_);
  bool gave_up_ ABSL_GUARDED_BY(mutex_) = false;  // the last line
  std::chrono::milliseconds pause_ ABSL_GUARDED_BY(mutex_) = kFirstPause;  // after the next one that is given up
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  Counters counters_ ABSL_GUARDED_BY(mutex_);
  std::optional<Fingerprint> too_long_ ABSL_GUARDED_BY(mutex_);  // the newest prefix of which that was said
};

void CacheClient::Impl::AttachUntilStopped() {
  for (;;) {
    AttachOnce();
    std::unique_lock<std::mutex> lock(mutex_);
    std::chrono::milliseconds wait = kRetry;
    if (std::exchange(gave_up_, false)) {
      wait = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    if (changed_.wait_for(lock, wait, [this] { return stopping_; })) return;
  }
}

std::shared_ptr<SharedMemory> CacheClient::Impl::MakeMemory() {
  absl::StatusOr<std::shared_ptr<SharedMemory>> memory = SharedMemory::Create(options_.shared_bytes);
  if (memory.ok()) return *std::move(memory);
  if (!told_of_streaming_) LogInfo("the cache's entries are streamed: ", memory.status().message());
  told_of_streaming_ = true;
  return nullptr;
}

void CacheClient::Impl::AttachOnce() {
  // Only for a daemon that is there is memory reserved.
  if (!channel_->WaitForConnected(std::chrono::system_clock::now() + kRetry)) return;
  std::shared_ptr<SharedMemory> memory = MakeMemory();
  grpc::ClientContext context;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    attach_context_ = &context;
  }
  const auto stream = stub_->Attach(&context);
  v1::AttachRequest request;
  request.set_namespace_(options_.name.text());
  request.set_quota_bytes(options_.quota_bytes);
  if (memory != nullptr) {
    request.set_shared_memory_name(memory->name());
    request.set_shared_memory_bytes(static_cast<int64_t>(memory->bytes().size()));
  }
  v1::AttachResponse response;
  if (stream->Write(request) && stream->Read(&response)) {
    if (memory != nullptr) memory->Unlink();
    if (!response.shared_memory()) memory.reset();
    if (response.quota_bytes() < options_.quota_bytes && !std::exchange(told_of_quota_, true)) {
      LogWarning("the cache keeps ", response.quota_bytes(), " bytes of this job, not ", options_.quota_bytes,
                 ": egeria-cache's own quota_per_job or quota is less");
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      line_ = {response.session(), memory, ++counters_.attached};
      counters_.streamed = memory == nullptr;
    }
    changed_.notify_all();
    stream->Read(&response);  // until the daemon or Stop() ends it
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    line_ = {};
    attach_context_ = nullptr;
  }
  context.TryCancel();
  stream->Finish();
}

bool CacheClient::Impl::Fetch(const Line& line, const v1::GetRequest& request, absl::Time deadline,
                              absl::FunctionRef<void(std::span<const std::byte> entry)> arrived) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const auto reader = stub_->Get(&context, request);
  const auto stride = static_cast<size_t>(request.stride());
  const auto wanted = static_cast<size_t>(request.samples_size());
  v1::GetResponse response;
  std::vector<uint32_t> lengths;  // of what is streamed
  std::string streamed;
  size_t count = 0;
  bool good = true;
  while (good && reader->Read(&response)) {
    if (line.memory == nullptr) {
      lengths.insert(lengths.end(), response.lengths().begin(), response.lengths().end());
      streamed.append(response.data());
      continue;
    }
    for (const uint32_t length : response.lengths()) {
      good = good && count < wanted && length <= stride;
      if (good) arrived(line.memory->bytes().subspan(count++ * stride, length));
    }
  }
  if (!good) context.TryCancel();
  good = reader->Finish().ok() && good;
  size_t at = 0;
  for (const uint32_t length : lengths) {
    good = good && count < wanted && length <= streamed.size() - at;
    if (!good) return false;
    arrived(std::as_bytes(std::span(streamed)).subspan(at, length));
    at += length;
    ++count;
  }
  return good && count == wanted;
}

void CacheClient::Impl::GiveUp(const Line& line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line_.attachment != line.attachment) return;
  line_ = {};
  gave_up_ = true;
  if (attach_context_ != nullptr) attach_context_->TryCancel();
}

std::vector<CacheClient::Outcome> CacheClient::Impl::Lookup(const Fingerprint& prefix,
                                                            std::span<const uint64_t> samples, size_t entry_bytes,
                                                            absl::FunctionRef<void(size_t, const Entry&)> found) {
  const auto begin = std::chrono::steady_clock::now();
  const Line line = this->line();
  const bool shared = line.memory != nullptr;
  const size_t slot = shared ? std::min(SlotOf(entry_bytes), line.half()) : SlotOf(entry_bytes);
  int64_t bytes_read = 0;
  std::vector<Outcome> outcomes(samples.size(), Outcome::kLate);
  Entry entry;
  bool failed = false;
  size_t at = 0;
  const auto arrived = [&](std::span<const std::byte> bytes) {
    const size_t position = at++;
    if (bytes.empty()) {
      outcomes[position] = Outcome::kAbsent;
      return;
    }
    bool intact = false;  // and if so, only longer than was asked for
    const bool good = ReadEntry({options_.name, prefix, samples[position]}, bytes, entry_bytes, &entry, &intact);
    outcomes[position] = good ? Outcome::kFound : intact ? Outcome::kAbsent : Outcome::kCorrupt;
    bytes_read += static_cast<int64_t>(bytes.size());
    if (good) found(position, entry);
  };
  while (!failed && line.session != 0 && at < samples.size() && slot > 0) {
    const size_t room = shared ? line.half() / slot : std::max<size_t>(1, kMaxStreamedRead / slot);
    const size_t count = std::min({samples.size() - at, room, kMaxSamplesPerCall});
    v1::GetRequest request;
    request.set_session(line.session);
    request.set_fingerprint(BytesOf(prefix));
    request.mutable_samples()->Add(samples.begin() + at, samples.begin() + at + count);
    request.set_stride(static_cast<int64_t>(slot));
    const absl::Duration reading = absl::Seconds(static_cast<double>(count * slot) / kSlowestBytesPerSecond);
    failed = !Fetch(line, request, absl::Now() + options_.patience + std::min(reading, kLongestReading), arrived);
  }
  if (failed) GiveUp(line);
  ForgetCorrupt(prefix, samples, outcomes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failed && at > 0) pause_ = kFirstPause;
  for (const Outcome outcome : outcomes) {
    counters_.found += outcome == Outcome::kFound;
    counters_.absent += outcome == Outcome::kAbsent;
    counters_.corrupt += outcome == Outcome::kCorrupt;
    counters_.late += outcome == Outcome::kLate;
  }
  counters_.bytes_read += bytes_read;
  counters_.lookup_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcomes;
}

// So that they are written anew, when they are offered next.
void CacheClient::Impl::ForgetCorrupt(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                      const std::vector<Outcome>& outcomes) {
  std::vector<uint64_t> corrupt;
  for (size_t i = 0; i < outcomes.size() && corrupt.size() < kMaxSamplesPerCall; ++i) {
    if (outcomes[i] == Outcome::kCorrupt) corrupt.push_back(samples[i]);
  }
  if (!corrupt.empty()) Push(Forget{prefix, v1::DropRequest::SAMPLES, std::move(corrupt)});
}

bool CacheClient::Impl::Reserve(const Fingerprint& prefix, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.offered;
  const size_t longest = std::min(options_.queue_bytes, line_.memory != nullptr ? line_.half() : kMaxStreamedRead);
  if (SlotOf(bytes) > longest) {
    ++counters_.refused;
    if (std::exchange(too_long_, prefix) != prefix) {
      LogWarning("[ENTRY_TOO_LONG] what the frozen layers give for a sample takes ", bytes, " bytes, and the cache takes "
                 "no more than ", longest, ": such samples are computed");
    }
    return false;
  }
  const bool room = stub_ != nullptr && !stopping_ && queued_bytes_ + bytes <= options_.queue_bytes;
  if (room) queued_bytes_ += bytes;
  counters_.dropped += !room;
  return room;
}

void CacheClient::Impl::Push(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stub_ == nullptr || stopping_) return;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void CacheClient::Impl::WriteUntilStopped() {
  for (;;) {
    std::vector<Write> writes;
    std::optional<Forget> forget;
    Line line;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      working_ = false;
      changed_.notify_all();
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      working_ = true;
      // As many writes in a row as fit into one call.
      size_t bytes = 0;
      line = line_;
      const size_t most = line.memory != nullptr ? line.half() : kMaxStreamedWrite;
      size_t slot = 0;
      while (!tasks_.empty() && !forget && writes.size() < kMaxSamplesPerCall) {
        if (auto* write = std::get_if<Write>(&tasks_.front())) {
          slot = std::max(slot, SlotOf(write->exact_bytes));
          if (!writes.empty() && (slot * (writes.size() + 1) > most || write->prefix != writes[0].prefix)) break;
          bytes += write->exact_bytes;
          writes.push_back(std::move(*write));
        } else if (writes.empty()) {
          forget = std::get<Forget>(tasks_.front());
        } else {
          break;
        }
        tasks_.pop_front();
      }
      queued_bytes_ -= bytes;
    }
    if (line.session == 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      counters_.dropped += static_cast<int64_t>(writes.size());
    } else if (forget) {
      Send(line, *forget);
    } else {
      WriteSome(line, std::move(writes));
    }
  }
}

void CacheClient::Impl::WriteSome(const Line& line, std::vector<Write> writes) {
  size_t slot = 0;
  v1::PutRequest request;
  request.set_session(line.session);
  request.set_fingerprint(BytesOf(writes[0].prefix));
  std::vector<std::vector<std::byte>> entries;
  for (Write& write : writes) {
    request.add_samples(write.sample);
    entries.push_back(maker_.Make(std::move(write)));
    slot = std::max(slot, SlotOf(entries.back().size()));
    request.add_lengths(static_cast<uint32_t>(entries.back().size()));
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kWritePatience);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    write_context_ = &context;
  }
  v1::PutResponse response;
  const auto writer = stub_->Put(&context, &response);
  bool good = true;
  if (line.memory != nullptr) {
    request.set_offset(static_cast<int64_t>(line.half()));
    request.set_stride(static_cast<int64_t>(slot));
    good = slot * entries.size() <= line.half();
    for (size_t i = 0; good && i < entries.size(); ++i) {
      std::memcpy(line.memory->bytes().data() + line.half() + i * slot, entries[i].data(), entries[i].size());
    }
    good = good && writer->Write(request);
  } else {
    good = writer->Write(request);
    for (size_t i = 0; good && i < entries.size(); ++i) {
      for (size_t sent = 0; good && sent < entries[i].size();) {
        const size_t bytes = std::min(rpc::kMaxChunkBytes, entries[i].size() - sent);
        request.Clear();
        request.set_data(entries[i].data() + sent, bytes);
        good = writer->Write(request);
        sent += bytes;
      }
    }
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  // The daemon may still read there: this memory is not written to again.
  if (line.memory != nullptr && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) GiveUp(line);
  good = status.ok() && good;
  const std::lock_guard<std::mutex> lock(mutex_);
  write_context_ = nullptr;
  const auto stored = static_cast<int64_t>(response.stored() + response.present());
  counters_.stored += good ? stored : 0;
  counters_.refused += static_cast<int64_t>(entries.size()) - (good ? stored : 0);
}

void CacheClient::Impl::Send(const Line& line, const Forget& forget) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kWritePatience);
  v1::DropRequest request;
  request.set_session(line.session);
  request.set_fingerprint(BytesOf(forget.prefix));
  request.set_scope(forget.scope);
  request.mutable_samples()->Add(forget.samples.begin(), forget.samples.end());
  v1::DropResponse response;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    write_context_ = &context;
  }
  stub_->Drop(&context, request, &response);
  const std::lock_guard<std::mutex> lock(mutex_);
  write_context_ = nullptr;
}

bool CacheClient::Impl::Flush(absl::Duration patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(patience),
                           [this] { return stopping_ || (tasks_.empty() && !working_); });
}

CacheClient::CacheClient(std::shared_ptr<Impl> impl) : pid_(getpid()), impl_(std::move(impl)) {}

std::unique_ptr<CacheClient> CacheClient::Start(const Options& options) {
  auto impl = std::make_shared<Impl>(options);
  impl->StartThreads(impl);
  return std::unique_ptr<CacheClient>(new CacheClient(std::move(impl)));
}

void CacheClient::Stop() {
  if (InChild()) {
    new std::shared_ptr<Impl>(impl_);  // its threads are the parent's; leaked on purpose
    return;
  }
  impl_->Stop();
}

bool CacheClient::InChild() const { return getpid() != pid_; }

std::vector<CacheClient::Outcome> CacheClient::Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                      size_t entry_bytes,
                                                      absl::FunctionRef<void(size_t position, const Entry&)> found) {
  if (InChild()) return std::vector<Outcome>(samples.size(), Outcome::kLate);
  return impl_->Lookup(StoredPrefix(prefix, impl_->options().format), samples, entry_bytes, found);
}

bool CacheClient::Offer(const Fingerprint& prefix, uint64_t sample, uint64_t input_hash,
                        std::span<const EntryTensor> tensors) {
  if (InChild() || !impl_->Reserve(prefix, EntrySize(tensors))) return false;  // before they are copied
  impl_->Push(Write(StoredPrefix(prefix, impl_->options().format), sample, input_hash, tensors));
  return true;
}

void CacheClient::Drop(const Fingerprint& prefix, Scope scope) {
  if (!InChild()) impl_->Push(Forget{StoredPrefix(prefix, impl_->options().format), ToProto(scope), {}});
}

bool CacheClient::Flush(absl::Duration patience) { return InChild() || impl_->Flush(patience); }

bool CacheClient::attached() const { return !InChild() && impl_->attached(); }

CacheClient::Counters CacheClient::counters() const { return InChild() ? Counters() : impl_->counters(); }

}  // namespace egeria::cache
