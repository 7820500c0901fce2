#include "worker/cache/client/batch_reader.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/base/thread_annotations.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/Event.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/tensor/torch_types.h"
#include "common/thread/thread.h"

namespace egeria::cache {
namespace {

using Clock = std::chrono::steady_clock;

// So much is asked for while nobody knows how long the entries of a prefix are.
constexpr size_t kUnknownEntryBytes = size_t{16} << 20;
// So many buffers wait to be used again: as many as batches may be under way on both sides.
constexpr size_t kMaxSpares = 16;

// A reading is one batch that is being read.
struct Reading {
  std::vector<uint64_t> samples;
  enum class State { kQueued, kReading, kReady } state = State::kQueued;
  bool urgent = false;

  // These are the reading thread's.
  Fingerprint prefix = {};
  size_t entry_bytes = 0;  // 0: nothing is known of the prefix, not even in the cache
  std::shared_ptr<PendingLookup> lookup;

  // The reading thread fills these in before it is ready.
  std::vector<at::Tensor> host;
  std::vector<at::Tensor> on_device;  // accelerators only
  std::optional<c10::Event> arrived;
  std::vector<SampleOutcome> outcomes;
  std::vector<uint64_t> input_hashes;
  size_t bytes = 0;
};

SampleOutcome OutcomeOf(CacheClient::Outcome outcome) {
  switch (outcome) {
    case CacheClient::Outcome::kFound: return SampleOutcome::kHit;
    case CacheClient::Outcome::kAbsent: return SampleOutcome::kAbsent;
    case CacheClient::Outcome::kCorrupt: return SampleOutcome::kCorrupt;
    case CacheClient::Outcome::kLate: break;
  }
  return SampleOutcome::kLate;
}

// Returns whether rows of the tensors are what the entry has.
bool Fits(const std::vector<at::Tensor>& tensors, const std::vector<EntryTensor>& entry) {
  if (tensors.size() != entry.size()) return false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (ToDataType(tensors[t].scalar_type()) != entry[t].dtype || tensors[t].sizes().slice(1) != entry[t].shape) {
      return false;
    }
  }
  return true;
}

const char* MissReason(SampleOutcome outcome) {
  switch (outcome) {
    case SampleOutcome::kHit: return "";
    case SampleOutcome::kAbsent: return "absent";
    case SampleOutcome::kOtherInput: return "other_input";
    case SampleOutcome::kCorrupt: return "corrupt";
    case SampleOutcome::kLate: return "late";
    case SampleOutcome::kUnfit: return "unfit";
  }
  return "unknown";
}

}  // namespace

std::vector<std::string> MissReasons(const std::vector<SampleOutcome>& outcomes) {
  std::vector<std::string> reasons;
  for (const SampleOutcome outcome : outcomes) reasons.emplace_back(MissReason(outcome));
  return reasons;
}

class BatchReader::Impl {
 public:
  Impl(std::shared_ptr<CacheClient> client, const Options& options) : client_(std::move(client)), options_(options) {
    if (at::accelerator::isAccelerator(options.device.type())) {
      stream_ = c10::impl::VirtualGuardImpl(options.device.type())
                    .getStreamFromGlobalPool(options.device, /*isHighPriority=*/false);
    }
  }

  void StartThread(const std::shared_ptr<Impl>& self) {
    thread_ = egeria::StartThread("cache-read", [self] { self->ReadUntilStopped(); });
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      readings_.clear();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    spares_.clear();
  }

  void Use(const Fingerprint& prefix) {
    const std::lock_guard<std::mutex> lock(mutex_);
    prefix_ = prefix;
    entry_bytes_ = 0;
    batch_bytes_ = 0;
    readings_.clear();
  }

  void Rest() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      readings_.clear();
      resting_ = true;
    }
    changed_.notify_all();
  }

  void ExpectSize(size_t entry_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry_bytes_ = std::max(entry_bytes_, entry_bytes);
  }

  void Expect(const std::vector<std::vector<uint64_t>>& batches);
  CachedBatch Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes, absl::Duration patience);

  Counters counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counters_;
  }

 private:
  using Shared = std::shared_ptr<Reading>;

  void ReadUntilStopped();
  // The reading thread calls these without the lock. A failure leaves samples out.
  void Start(const Fingerprint& prefix, size_t entry_bytes, Reading* reading);
  void Finish(bool wanted, Reading* reading);
  void FillIn(Reading* reading);
  size_t LearnSize(const Fingerprint& prefix, uint64_t sample);
  std::vector<at::Tensor> MakeBatch(const std::vector<EntryTensor>& entry, size_t samples);
  void CopyToDevice(Reading* reading);
  at::Tensor Buffer(at::IntArrayRef shape, at::ScalarType type);
  void SetReady(Reading* reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Shared Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Shared Find(std::span<const uint64_t> samples) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const CachedBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CachedBatch HandOut(const Shared& reading, std::span<const uint64_t> input_hashes);

  const std::shared_ptr<CacheClient> client_;
  const Options options_;
  std::optional<c10::Stream> stream_;  // accelerators only
  std::thread thread_;

  // The reading thread keeps what was handed out, to use it again once nobody else has it. Fresh memory costs as much
  // as reading into it does.
  std::deque<at::Tensor> spares_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;  // spares are to go
  Fingerprint prefix_ ABSL_GUARDED_BY(mutex_) = {};
  size_t entry_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not known
  size_t batch_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the last found batch's; 0: not known
  std::deque<Shared> readings_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

BatchReader::Impl::Shared BatchReader::Impl::Find(std::span<const uint64_t> samples) const {
  for (const Shared& reading : readings_) {
    if (std::ranges::equal(reading->samples, samples)) return reading;
  }
  return nullptr;
}

void BatchReader::Impl::Expect(const std::vector<std::vector<uint64_t>>& batches) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    std::deque<Shared> expected;
    for (const std::vector<uint64_t>& samples : batches) {
      if (samples.empty()) continue;
      Shared reading = Find(samples);
      if (reading == nullptr) {
        reading = std::make_shared<Reading>();
        reading->samples = samples;
      }
      expected.push_back(std::move(reading));
    }
    readings_ = std::move(expected);
  }
  changed_.notify_all();
}

CachedBatch BatchReader::Impl::Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes,
                                    absl::Duration patience) {
  EGERIA_CHECK(samples.size() == input_hashes.size());
  const auto begin = Clock::now();
  CachedBatch batch;
  batch.outcomes.assign(samples.size(), SampleOutcome::kLate);
  std::unique_lock<std::mutex> lock(mutex_);
  if (samples.empty() || stopping_) return batch;
  Shared reading = Find(samples);
  const bool ahead = reading != nullptr && reading->state == Reading::State::kReady;
  if (reading == nullptr) {
    reading = std::make_shared<Reading>();
    reading->samples.assign(samples.begin(), samples.end());
    readings_.push_front(reading);
  }
  if (!ahead) {
    reading->urgent = true;
    changed_.notify_all();
    changed_.wait_until(lock, begin + absl::ToChronoNanoseconds(patience),
                        [&] { return stopping_ || reading->state == Reading::State::kReady; });
    counters_.waited_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  const bool ready = reading->state == Reading::State::kReady;
  std::erase(readings_, reading);
  counters_.batches_ahead += ahead;
  counters_.batches_waited_for += ready && !ahead;
  counters_.batches_late += !ready;
  if (ready) {
    lock.unlock();
    batch = HandOut(reading, input_hashes);
    lock.lock();
  }
  Count(batch);
  lock.unlock();
  changed_.notify_all();  // there is room to read ahead
  return batch;
}

CachedBatch BatchReader::Impl::HandOut(const Shared& reading, std::span<const uint64_t> input_hashes) {
  CachedBatch batch;
  batch.outcomes = reading->outcomes;
  bool any = false;
  for (size_t i = 0; i < batch.outcomes.size(); ++i) {
    if (batch.outcomes[i] != SampleOutcome::kHit) continue;
    if (reading->input_hashes[i] != input_hashes[i]) batch.outcomes[i] = SampleOutcome::kOtherInput;
    any = any || batch.outcomes[i] == SampleOutcome::kHit;
  }
  if (!any) return batch;
  if (!stream_.has_value()) {
    // They are tensors of their own over the same memory: one that Python has had never has a single owner again.
    for (const at::Tensor& host : reading->host) batch.tensors.push_back(host.variable_data());
    reading->host.clear();
    return batch;
  }
  const c10::Stream current = at::accelerator::getCurrentStream(options_.device.index());
  reading->arrived->block(current);
  for (const at::Tensor& tensor : reading->on_device) tensor.record_stream(current);
  batch.tensors = std::move(reading->on_device);
  return batch;
}

void BatchReader::Impl::Count(const CachedBatch& batch) {
  for (const SampleOutcome outcome : batch.outcomes) {
    counters_.hits += outcome == SampleOutcome::kHit;
    counters_.absent += outcome == SampleOutcome::kAbsent;
    counters_.other_input += outcome == SampleOutcome::kOtherInput;
    counters_.corrupt += outcome == SampleOutcome::kCorrupt;
    counters_.late += outcome == SampleOutcome::kLate;
    counters_.unfit += outcome == SampleOutcome::kUnfit;
  }
}

// Returns the one that is waited for, or the first that is not read yet; none while what is read ahead takes too much
// memory.
BatchReader::Impl::Shared BatchReader::Impl::Next() {
  size_t bytes = 0;
  Shared first;
  for (const Shared& reading : readings_) {
    if (reading->state == Reading::State::kQueued && reading->urgent) return reading;
    if (reading->state == Reading::State::kQueued && first == nullptr) first = reading;
    if (reading->state == Reading::State::kReading) bytes += batch_bytes_;
    if (reading->state == Reading::State::kReady) bytes += reading->bytes;
  }
  return bytes == 0 || bytes + batch_bytes_ <= options_.ahead_bytes ? first : nullptr;
}

void BatchReader::Impl::ReadUntilStopped() {
  const at::NoGradGuard no_gradients;
  Shared started;  // the daemon reads it while the one before it is finished
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Shared next;
    changed_.wait(lock, [&] { return stopping_ || resting_ || started != nullptr || (next = Next()) != nullptr; });
    if (stopping_) return;
    if (std::exchange(resting_, false)) {
      spares_.clear();
      continue;
    }
    // The first of a prefix goes alone: it tells how long entries are, and how much memory a batch takes.
    if (started != nullptr && batch_bytes_ > 0) next = Next();
    if (next != nullptr) next->state = Reading::State::kReading;
    const Fingerprint prefix = prefix_;
    const size_t entry_bytes = entry_bytes_;
    const bool wanted = std::ranges::find(readings_, started) != readings_.end();
    lock.unlock();
    if (next != nullptr) Start(prefix, entry_bytes, next.get());
    if (started != nullptr) Finish(wanted, started.get());
    lock.lock();
    if (started != nullptr) SetReady(started.get());
    started = std::move(next);
  }
}

void BatchReader::Impl::SetReady(Reading* reading) {
  reading->state = Reading::State::kReady;
  if (reading->prefix == prefix_) {
    entry_bytes_ = std::max(entry_bytes_, reading->entry_bytes);
    if (reading->bytes > 0) batch_bytes_ = reading->bytes;
  }
  changed_.notify_all();
}

void BatchReader::Impl::Start(const Fingerprint& prefix, size_t entry_bytes, Reading* reading) {
  reading->prefix = prefix;
  try {
    reading->entry_bytes = entry_bytes > 0 ? entry_bytes : LearnSize(prefix, reading->samples[0]);
    if (reading->entry_bytes == 0) return;
    reading->lookup = client_->StartLookup(prefix, reading->samples, reading->entry_bytes);
  } catch (const std::exception& error) {  // no memory, say
    LogWarning("a batch could not be asked for: ", error.what());
  }
}

void BatchReader::Impl::Finish(bool wanted, Reading* reading) {
  try {
    if (wanted) FillIn(reading);
  } catch (const std::exception& error) {
    LogWarning("a batch could not be read from the cache: ", error.what());
    reading->outcomes.assign(reading->samples.size(), SampleOutcome::kLate);
  }
  reading->lookup.reset();  // waits for the daemon where it was not finished
}

size_t BatchReader::Impl::LearnSize(const Fingerprint& prefix, uint64_t sample) {
  size_t bytes = 0;
  client_->Lookup(prefix, std::span(&sample, 1), kUnknownEntryBytes,
                  [&](size_t, const Entry& entry) { bytes = EntrySize(entry.tensors); });
  return bytes;
}

void BatchReader::Impl::FillIn(Reading* reading) {
  const size_t count = reading->samples.size();
  reading->outcomes.assign(count, SampleOutcome::kAbsent);
  reading->input_hashes.assign(count, 0);
  if (reading->lookup == nullptr && reading->entry_bytes > 0) reading->outcomes.assign(count, SampleOutcome::kLate);
  if (reading->lookup == nullptr) return;
  std::vector<bool> unfit(count, false);
  const std::vector<CacheClient::Outcome> outcomes =
      client_->FinishLookup(reading->lookup.get(), [&](size_t position, const Entry& entry) {
        if (reading->host.empty()) reading->host = MakeBatch(entry.tensors, count);
        unfit[position] = !Fits(reading->host, entry.tensors);
        if (unfit[position]) return;
        reading->input_hashes[position] = entry.input_hash;
        for (size_t t = 0; t < entry.tensors.size(); ++t) {
          const size_t bytes = reading->host[t].nbytes() / count;
          std::memcpy(static_cast<std::byte*>(reading->host[t].mutable_data_ptr()) + position * bytes,
                      entry.tensors[t].data, bytes);
        }
      });
  for (size_t i = 0; i < count; ++i) {
    reading->outcomes[i] = unfit[i] ? SampleOutcome::kUnfit : OutcomeOf(outcomes[i]);
  }
  for (const at::Tensor& tensor : reading->host) reading->bytes += tensor.nbytes();
  if (stream_.has_value() && !reading->host.empty()) CopyToDevice(reading);
}

std::vector<at::Tensor> BatchReader::Impl::MakeBatch(const std::vector<EntryTensor>& entry, size_t samples) {
  std::vector<at::Tensor> tensors;
  for (const EntryTensor& tensor : entry) {
    std::vector<int64_t> shape = {static_cast<int64_t>(samples)};
    shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
    tensors.push_back(Buffer(shape, ToScalarType(tensor.dtype)));
  }
  return tensors;
}

at::Tensor BatchReader::Impl::Buffer(at::IntArrayRef shape, at::ScalarType type) {
  const bool pinned = stream_.has_value();
  for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
    // Nobody else has the tensor, or a view of it.
    const bool unused = spare->use_count() == 1 && spare->storage().use_count() == 1;
    if (unused && spare->sizes() == shape && spare->scalar_type() == type) {
      at::Tensor found = std::move(*spare);
      spares_.erase(spare);
      spares_.push_back(found);
      return found;
    }
  }
  if (spares_.size() >= kMaxSpares) spares_.pop_front();
  spares_.push_back(at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(pinned)));
  return spares_.back();
}

void BatchReader::Impl::CopyToDevice(Reading* reading) {
  const c10::DeviceGuard on_device(options_.device);
  {
    const c10::StreamGuard on_stream(*stream_);
    for (const at::Tensor& host : reading->host) {
      at::Tensor copy = at::empty(host.sizes(), host.options().device(options_.device).pinned_memory(false));
      reading->on_device.push_back(copy.copy_(host, /*non_blocking=*/true));
    }
  }
  reading->arrived.emplace(options_.device.type());
  reading->arrived->record(*stream_);
  reading->arrived->synchronize();  // this thread's time; the pinned buffers may be used again
  reading->host.clear();
}

BatchReader::BatchReader(std::shared_ptr<CacheClient> client, const Options& options)
    : pid_(getpid()), impl_(std::make_shared<Impl>(std::move(client), options)) {
  impl_->StartThread(impl_);
}

BatchReader::~BatchReader() { Stop(); }

bool BatchReader::InChild() const { return getpid() != pid_; }

void BatchReader::Stop() {
  if (InChild()) {
    new std::shared_ptr<Impl>(impl_);  // its thread is the parent's; leaked on purpose
    return;
  }
  impl_->Stop();
}

void BatchReader::Use(const Fingerprint& prefix) {
  if (!InChild()) impl_->Use(prefix);
}

void BatchReader::Rest() {
  if (!InChild()) impl_->Rest();
}

void BatchReader::ExpectSize(size_t entry_bytes) {
  if (!InChild()) impl_->ExpectSize(entry_bytes);
}

void BatchReader::Expect(const std::vector<std::vector<uint64_t>>& batches) {
  if (!InChild()) impl_->Expect(batches);
}

CachedBatch BatchReader::Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes,
                              absl::Duration patience) {
  if (InChild()) return {{}, std::vector<SampleOutcome>(samples.size(), SampleOutcome::kLate)};
  return impl_->Take(samples, input_hashes, patience);
}

BatchReader::Counters BatchReader::counters() const { return InChild() ? Counters() : impl_->counters(); }

}  // namespace egeria::cache
