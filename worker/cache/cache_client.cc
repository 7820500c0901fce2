#include "worker/cache/cache_client.h"

#include <unistd.h>

#include <algorithm>
#include <array>
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
#include "worker/cache/get_call.h"
#include "worker/cache/shared_memory.h"

namespace egeria::cache {
namespace {

constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::seconds kWritePatience{5};
constexpr std::chrono::milliseconds kFirstPause{1'000};
constexpr std::chrono::milliseconds kLongestPause{64'000};
constexpr size_t kSlotAlignment = 64;
constexpr size_t kMaxSamplesPerCall = 4'096;
// Of what is to be forgotten once the daemon is there again; older ones are left to eviction.
constexpr size_t kMostOwed = 64;
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

// A session and the memory shared with it, which is null where bytes are streamed. One part of it is for each lookup
// that may be under way, the last one for writes.
struct Line {
  int64_t session = 0;  // 0: not attached
  std::shared_ptr<SharedMemory> memory;
  int64_t attachment = 0;  // numbers them; a daemon that was restarted begins anew with its sessions

  size_t part() const {
    return memory->bytes().size() / (CacheClient::kMostLookups + 1) / kSlotAlignment * kSlotAlignment;
  }
  size_t writes_begin() const { return CacheClient::kMostLookups * part(); }
};

}  // namespace

struct CacheClient::PendingLookup {
  PendingLookup(std::shared_ptr<Impl> impl, const Fingerprint& prefix, std::span<const uint64_t> samples,
                size_t entry_bytes)
      : impl(std::move(impl)), prefix(prefix), samples(samples.begin(), samples.end()), entry_bytes(entry_bytes) {}
  ~PendingLookup();
  PendingLookup(const PendingLookup&) = delete;
  PendingLookup& operator=(const PendingLookup&) = delete;

  const std::shared_ptr<Impl> impl;
  const Fingerprint prefix;
  const std::vector<uint64_t> samples;
  const size_t entry_bytes;
  Line line;
  size_t offset = 0;  // of its part of the shared memory
  size_t slot = 0;    // for an entry there
  size_t room = 0;    // for samples in a call; 0: nothing can be asked for
  size_t asked = 0;   // for the first ones
  std::unique_ptr<GetCall> call;
};

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

  void Start(PendingLookup* lookup);
  // Waits for it. Returns the outcomes.
  std::vector<Outcome> Finish(PendingLookup* lookup, absl::FunctionRef<void(size_t, const Entry&)> found);
  // Of one that nobody will finish.
  void Abandon(PendingLookup* lookup);
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
  // Could not be told, and is once there is a line again.
  void Owe(Forget forget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a lookup that was not answered in time: this line is not used any more, since the daemon may still write into
  // its memory. The next one comes after a while, which doubles each time, so that a daemon that is stopped or overloaded
  // is hardly ever asked.
  void GiveUp(const Line& line);
  // Asks for as many more samples as fit into one call.
  void AskForMore(PendingLookup* lookup);

  const Options options_;
  EntryMaker maker_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  std::array<const PendingLookup*, kMostLookups> lookups_ = {};  // by part of the memory; of the thread that looks up
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
  std::deque<Forget> owed_ ABSL_GUARDED_BY(mutex_);
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
      tasks_.insert(tasks_.begin(), owed_.begin(), owed_.end());
      owed_.clear();
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

void CacheClient::Impl::GiveUp(const Line& line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line_.attachment != line.attachment) return;
  line_ = {};
  gave_up_ = true;
  if (attach_context_ != nullptr) attach_context_->TryCancel();
}

void CacheClient::Impl::Start(PendingLookup* lookup) {
  const auto free = std::ranges::find(lookups_, nullptr);
  if (free == lookups_.end()) return;
  *free = lookup;
  lookup->line = line();
  const Line& line = lookup->line;
  const bool shared = line.memory != nullptr;
  lookup->offset = shared ? (free - lookups_.begin()) * line.part() : 0;
  lookup->slot = shared ? std::min(SlotOf(lookup->entry_bytes), line.part()) : SlotOf(lookup->entry_bytes);
  if (line.session == 0 || lookup->slot == 0) return;
  lookup->room = shared ? line.part() / lookup->slot : std::max<size_t>(1, kMaxStreamedRead / lookup->slot);
  lookup->room = std::min(lookup->room, kMaxSamplesPerCall);
  // Else the next lookup's time would pass while this one makes more calls.
  if (lookup->samples.size() <= lookup->room) AskForMore(lookup);
}

void CacheClient::Impl::AskForMore(PendingLookup* lookup) {
  const auto rest = std::span(lookup->samples).subspan(lookup->asked);
  const auto samples = rest.first(std::min(rest.size(), lookup->room));
  if (samples.empty()) return;
  v1::GetRequest request;
  request.set_session(lookup->line.session);
  request.set_fingerprint(BytesOf(lookup->prefix));
  request.mutable_samples()->Add(samples.begin(), samples.end());
  request.set_offset(static_cast<int64_t>(lookup->offset));
  request.set_stride(static_cast<int64_t>(lookup->slot));
  const double bytes = static_cast<double>(samples.size() * lookup->slot);
  const absl::Duration reading = std::min(absl::Seconds(bytes / kSlowestBytesPerSecond), kLongestReading);
  // Lookups under way share the disk.
  const absl::Time deadline = absl::Now() + options_.patience + static_cast<int>(kMostLookups) * reading;
  lookup->call = std::make_unique<GetCall>(stub_.get(), request, lookup->line.memory, deadline);
  lookup->asked += samples.size();
}

std::vector<CacheClient::Outcome> CacheClient::Impl::Finish(PendingLookup* lookup,
                                                            absl::FunctionRef<void(size_t, const Entry&)> found) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t bytes_read = 0;
  std::vector<Outcome> outcomes(lookup->samples.size(), Outcome::kLate);
  Entry entry;
  size_t at = 0;
  const auto arrived = [&](std::span<const std::byte> bytes) {
    const size_t position = at++;
    if (bytes.empty()) {
      outcomes[position] = Outcome::kAbsent;
      return;
    }
    bool intact = false;  // and if so, only longer than was asked for
    const EntryKey key{options_.name, lookup->prefix, lookup->samples[position]};
    const bool good = ReadEntry(key, bytes, lookup->entry_bytes, &entry, &intact);
    outcomes[position] = good ? Outcome::kFound : intact ? Outcome::kAbsent : Outcome::kCorrupt;
    bytes_read += static_cast<int64_t>(bytes.size());
    if (good) found(position, entry);
  };
  bool good = true;
  if (lookup->asked == 0) AskForMore(lookup);
  while (good && lookup->call != nullptr) {
    good = lookup->call->Finish(arrived);
    lookup->call.reset();
    if (good) AskForMore(lookup);
  }
  std::ranges::replace(lookups_, lookup, nullptr);
  if (!good) GiveUp(lookup->line);
  ForgetCorrupt(lookup->prefix, lookup->samples, outcomes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (good && at > 0 && line_.attachment == lookup->line.attachment) pause_ = kFirstPause;
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

void CacheClient::Impl::Abandon(PendingLookup* lookup) {
  // Its part of the memory is another lookup's only once the daemon has done with it.
  const bool writes = lookup->call != nullptr && lookup->line.memory != nullptr;
  if (writes && !lookup->call->Finish([](std::span<const std::byte>) {})) GiveUp(lookup->line);
  std::ranges::replace(lookups_, lookup, nullptr);
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
  const size_t longest = std::min(options_.queue_bytes, line_.memory != nullptr ? line_.part() : kMaxStreamedRead);
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
      const size_t most = line.memory != nullptr ? line.part() : kMaxStreamedWrite;
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
      if (forget) Owe(*std::move(forget));
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
    request.set_offset(static_cast<int64_t>(line.writes_begin()));
    request.set_stride(static_cast<int64_t>(slot));
    good = slot * entries.size() <= line.part();
    std::byte* const begin = line.memory->bytes().data() + line.writes_begin();
    for (size_t i = 0; good && i < entries.size(); ++i) {
      std::memcpy(begin + i * slot, entries[i].data(), entries[i].size());
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
  const grpc::Status status = stub_->Drop(&context, request, &response);
  const std::lock_guard<std::mutex> lock(mutex_);
  write_context_ = nullptr;
  if (!status.ok()) Owe(forget);
}

void CacheClient::Impl::Owe(Forget forget) {
  if (owed_.size() == kMostOwed) owed_.pop_front();
  owed_.push_back(std::move(forget));
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

CacheClient::PendingLookup::~PendingLookup() { impl->Abandon(this); }

std::shared_ptr<CacheClient::PendingLookup> CacheClient::StartLookup(const Fingerprint& prefix,
                                                                     std::span<const uint64_t> samples,
                                                                     size_t entry_bytes) {
  const Fingerprint stored = StoredPrefix(prefix, impl_->options().format);
  auto lookup = std::make_shared<PendingLookup>(impl_, stored, samples, entry_bytes);
  if (!InChild()) impl_->Start(lookup.get());
  return lookup;
}

std::vector<CacheClient::Outcome> CacheClient::FinishLookup(
    PendingLookup* lookup, absl::FunctionRef<void(size_t position, const Entry&)> found) {
  if (InChild()) return std::vector<Outcome>(lookup->samples.size(), Outcome::kLate);
  return impl_->Finish(lookup, found);
}

std::vector<CacheClient::Outcome> CacheClient::Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                      size_t entry_bytes,
                                                      absl::FunctionRef<void(size_t position, const Entry&)> found) {
  return FinishLookup(StartLookup(prefix, samples, entry_bytes).get(), found);
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
