#include "worker/cache/client/batch_reader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
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
#include "common/thread/mutex.h"
#include "common/thread/thread.h"
#include "worker/cache/client/batch_of_rows.h"

namespace egeria::cache {
namespace {

using Clock = std::chrono::steady_clock;

// So many bytes are asked for while nobody knows how long the entries of a prefix are.
constexpr size_t kUnknownEntryBytes = size_t{16} << 20;

// One batch while it is read.
struct Reading {
  std::vector<uint64_t> samples;
  enum class State { kQueued, kReading, kReady } state = State::kQueued;
  bool urgent = false;

  // Only the reading thread uses these.
  Fingerprint prefix = {};
  bool ragged = false;
  size_t entry_bytes = 0;  // 0: nothing is known of the prefix, not even in the cache
  std::shared_ptr<PendingLookup> lookup;

  // The reading thread fills these in before the batch is ready.
  std::vector<at::Tensor> host;
  std::vector<std::vector<int64_t>> lengths;
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

// By default a thread must not allocate or ask for an event while another one captures a CUDA graph, which would fail.
// From here on the calling thread may. torch has loaded the CUDA runtime where there is one.
void IgnoreCaptures() {
  int mode = 1;  // cudaStreamCaptureModeThreadLocal: what other threads capture does not count
  void* const exchange = dlsym(RTLD_DEFAULT, "cudaThreadExchangeStreamCaptureMode");
  if (exchange != nullptr) reinterpret_cast<int (*)(int*)>(exchange)(&mode);
}

const char* MissReason(SampleOutcome outcome) {
  switch (outcome) {
    case SampleOutcome::kHit: return "";
    case SampleOutcome::kAbsent: return "absent";
    case SampleOutcome::kOtherInput: return "other_input";
    case SampleOutcome::kCorrupt: return "corrupt";
    case SampleOutcome::kLate: return "late";
    case SampleOutcome::kShapeMismatch: return "unfit";
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
    buffers_.set_pinned(stream_.has_value());
  }

  void StartThread(const std::shared_ptr<Impl>& self) {
    thread_ = egeria::StartThread("cache-read", [self] { self->ReadUntilStopped(); });
  }

  void Stop() {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      readings_.clear();
    }
    changed_.NotifyAll();
    if (thread_.joinable()) thread_.join();
    buffers_.Clear();
  }

  void Use(const Fingerprint& prefix, bool ragged) {
    const MutexLock lock(&mutex_);
    prefix_ = prefix;
    ragged_ = ragged;
    entry_bytes_ = 0;
    batch_bytes_ = 0;
    readings_.clear();
  }

  void Rest() {
    {
      const MutexLock lock(&mutex_);
      readings_.clear();
      resting_ = true;
    }
    changed_.NotifyAll();
  }

  void ExpectSize(size_t entry_bytes) {
    const MutexLock lock(&mutex_);
    entry_bytes_ = std::max(entry_bytes_, entry_bytes);
  }

  void Expect(const std::vector<std::vector<uint64_t>>& batches);
  CachedBatch Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes, absl::Duration patience);

  Counters counters() const {
    const MutexLock lock(&mutex_);
    return counters_;
  }

 private:
  using Shared = std::shared_ptr<Reading>;
  // The next work of the reading thread: it begins to read `next`, if there is one, and finishes what it has started.
  struct Turn {
    bool rest = false;  // instead, it lets go of its spare buffers
    Shared next;
    bool started_is_wanted = false;
    size_t entry_bytes = 0;
  };

  void ReadUntilStopped() ABSL_LOCKS_EXCLUDED(mutex_);
  // Empty once the reader is to stop.
  std::optional<Turn> WaitForTurn(const Shared& started) ABSL_LOCKS_EXCLUDED(mutex_);
  // The reading thread calls these without the lock. A failure leaves samples out.
  void Start(size_t entry_bytes, Reading* reading);
  void Finish(bool wanted, Reading* reading);
  void FillIn(Reading* reading);
  size_t LearnSize(const Fingerprint& prefix, uint64_t sample);
  void CopyToDevice(Reading* reading);
  void SetReady(Reading* reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Shared Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Shared Find(std::span<const uint64_t> samples) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const CachedBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The batch once it is read; null where that is not before the patience ends.
  Shared WaitFor(std::span<const uint64_t> samples, absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // The reading thread reads ahead in the background, and what is waited for at once.
  void HurryUp(bool now) {
    if (const pid_t thread = thread_id_; thread != 0) SetBackground(thread, !now);
  }
  CachedBatch HandOut(const Shared& reading, std::span<const uint64_t> input_hashes);

  const std::shared_ptr<CacheClient> client_;
  const Options options_;
  std::optional<c10::Stream> stream_;  // accelerators only
  std::thread thread_;
  std::atomic<pid_t> thread_id_ = 0;  // 0: it has not begun yet

  BatchBuffers buffers_;  // the reading thread's

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;  // spares are to go
  Fingerprint prefix_ ABSL_GUARDED_BY(mutex_) = {};
  bool ragged_ ABSL_GUARDED_BY(mutex_) = false;
  size_t entry_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not known
  size_t batch_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the size of the last batch that was found; 0: not known
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
    const MutexLock lock(&mutex_);
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
  changed_.NotifyAll();
}

CachedBatch BatchReader::Impl::Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes,
                                    absl::Duration patience) {
  EGERIA_CHECK(samples.size() == input_hashes.size());
  CachedBatch batch;
  batch.outcomes.assign(samples.size(), SampleOutcome::kLate);
  {
    const MutexLock lock(&mutex_);
    if (samples.empty() || stopping_) return batch;
  }
  const Shared reading = WaitFor(samples, patience);
  if (reading != nullptr) batch = HandOut(reading, input_hashes);
  {
    const MutexLock lock(&mutex_);
    Count(batch);
  }
  changed_.NotifyAll();  // there is room to read ahead
  return batch;
}

BatchReader::Impl::Shared BatchReader::Impl::WaitFor(std::span<const uint64_t> samples, absl::Duration patience) {
  const auto begin = Clock::now();
  const MutexLock lock(&mutex_);
  Shared reading = Find(samples);
  const bool ahead = reading != nullptr && reading->state == Reading::State::kReady;
  if (reading == nullptr) {
    reading = std::make_shared<Reading>();
    reading->samples.assign(samples.begin(), samples.end());
    readings_.push_front(reading);
  }
  if (!ahead) {
    reading->urgent = true;
    HurryUp(true);
    changed_.NotifyAll();
    const Clock::time_point deadline = begin + absl::ToChronoNanoseconds(patience);
    while (!stopping_ && reading->state != Reading::State::kReady) {
      if (!changed_.WaitUntil(&mutex_, deadline)) break;
    }
    HurryUp(false);
    counters_.waited_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  const bool ready = reading->state == Reading::State::kReady;
  std::erase(readings_, reading);
  counters_.batches_ahead += ahead;
  counters_.batches_waited_for += ready && !ahead;
  counters_.batches_late += !ready;
  return ready ? reading : nullptr;
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
    // These are new tensors over the same memory: one that Python has had never has a single owner again.
    for (const at::Tensor& host : reading->host) batch.tensors.push_back(host.variable_data());
    batch.lengths = std::move(reading->lengths);
    reading->host.clear();
    return batch;
  }
  const c10::Stream current = at::accelerator::getCurrentStream(options_.device.index());
  reading->arrived->block(current);
  for (const at::Tensor& tensor : reading->on_device) tensor.record_stream(current);
  batch.tensors = std::move(reading->on_device);
  batch.lengths = std::move(reading->lengths);
  return batch;
}

void BatchReader::Impl::Count(const CachedBatch& batch) {
  for (const SampleOutcome outcome : batch.outcomes) {
    counters_.hits += outcome == SampleOutcome::kHit;
    counters_.absent += outcome == SampleOutcome::kAbsent;
    counters_.other_input += outcome == SampleOutcome::kOtherInput;
    counters_.corrupt += outcome == SampleOutcome::kCorrupt;
    counters_.late += outcome == SampleOutcome::kLate;
    counters_.unfit += outcome == SampleOutcome::kShapeMismatch;
  }
}

// Returns the batch that is waited for, or else the first that is not read yet, and none while those that were read
// ahead take too much memory.
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

std::optional<BatchReader::Impl::Turn> BatchReader::Impl::WaitForTurn(const Shared& started) {
  const MutexLock lock(&mutex_);
  Turn turn;
  while (!stopping_ && !resting_ && started == nullptr && (turn.next = Next()) == nullptr) changed_.Wait(&mutex_);
  if (stopping_) return std::nullopt;
  turn.rest = std::exchange(resting_, false);
  if (turn.rest) return turn;
  // The first batch of a prefix goes alone: it tells how long entries are, and how much memory a batch takes.
  if (started != nullptr && batch_bytes_ > 0) turn.next = Next();
  if (turn.next != nullptr) {
    turn.next->state = Reading::State::kReading;
    turn.next->prefix = prefix_;
    turn.next->ragged = ragged_;
  }
  turn.entry_bytes = entry_bytes_;
  turn.started_is_wanted = std::ranges::find(readings_, started) != readings_.end();
  return turn;
}

void BatchReader::Impl::ReadUntilStopped() {
  if (stream_.has_value()) IgnoreCaptures();
  thread_id_ = gettid();
  SetBackground(thread_id_, true);
  const at::NoGradGuard no_gradients;
  Shared started;  // the daemon reads it while the one before it is finished
  while (std::optional<Turn> turn = WaitForTurn(started)) {
    if (turn->rest) {
      buffers_.Clear();
      continue;
    }
    if (turn->next != nullptr) Start(turn->entry_bytes, turn->next.get());
    if (started != nullptr) {
      Finish(turn->started_is_wanted, started.get());
      const MutexLock lock(&mutex_);
      SetReady(started.get());
    }
    started = std::move(turn->next);
  }
}

void BatchReader::Impl::SetReady(Reading* reading) {
  reading->state = Reading::State::kReady;
  if (reading->prefix == prefix_) {
    entry_bytes_ = std::max(entry_bytes_, reading->entry_bytes);
    if (reading->bytes > 0) batch_bytes_ = reading->bytes;
  }
  changed_.NotifyAll();
}

void BatchReader::Impl::Start(size_t entry_bytes, Reading* reading) {
  try {
    reading->entry_bytes = entry_bytes > 0 ? entry_bytes : LearnSize(reading->prefix, reading->samples[0]);
    if (reading->entry_bytes == 0 && !reading->ragged) return;
    reading->lookup = client_->StartLookup(reading->prefix, reading->samples, reading->entry_bytes, reading->ragged);
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
  BatchOfRows rows(&buffers_, count, reading->ragged);
  const std::vector<CacheClient::Outcome> outcomes =
      client_->FinishLookup(reading->lookup.get(), [&](size_t position, const Entry& entry) {
        unfit[position] = !rows.Add(position, entry.tensors);
        reading->input_hashes[position] = entry.input_hash;
      });
  for (size_t i = 0; i < count; ++i) {
    reading->outcomes[i] = unfit[i] ? SampleOutcome::kShapeMismatch : OutcomeOf(outcomes[i]);
  }
  reading->host = rows.Finish(&reading->lengths);
  for (const at::Tensor& tensor : reading->host) reading->bytes += tensor.nbytes();
  if (stream_.has_value() && !reading->host.empty()) CopyToDevice(reading);
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
    : impl_(std::make_shared<Impl>(std::move(client), options)) {
  impl_.get()->StartThread(impl_.shared());
}

BatchReader::~BatchReader() { Stop(); }

void BatchReader::Stop() { impl_.Call(&Impl::Stop); }

void BatchReader::Use(const Fingerprint& prefix, bool ragged) { impl_.Call(&Impl::Use, prefix, ragged); }

void BatchReader::Rest() { impl_.Call(&Impl::Rest); }

void BatchReader::ExpectSize(size_t entry_bytes) { impl_.Call(&Impl::ExpectSize, entry_bytes); }

void BatchReader::Expect(const std::vector<std::vector<uint64_t>>& batches) { impl_.Call(&Impl::Expect, batches); }

CachedBatch BatchReader::Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes,
                              absl::Duration patience) {
  Impl* const impl = impl_.get();
  if (impl == nullptr) return {{}, std::vector<SampleOutcome>(samples.size(), SampleOutcome::kLate), {}};
  return impl->Take(samples, input_hashes, patience);
}

BatchReader::Counters BatchReader::counters() const { return impl_.Call(&Impl::counters); }

}  // namespace egeria::cache
