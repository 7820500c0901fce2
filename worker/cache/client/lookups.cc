#include "worker/cache/client/lookups.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace egeria::cache {
namespace {

// Reading may take as long as at this rate, and no longer than this for what one call asks for.
constexpr double kSlowestBytesPerSecond = 100e6;
constexpr absl::Duration kLongestReading = absl::Milliseconds(650);

}  // namespace

PendingLookup::~PendingLookup() {
  if (lookups != nullptr) lookups->Abandon(this);
}

void Lookups::Start(PendingLookup* lookup, bool longer_too) {
  const auto free = std::ranges::find(under_way_, nullptr);
  if (free == under_way_.end()) return;
  *free = lookup;
  lookup->line = attachment_.line();
  const Line& line = lookup->line;
  const bool shared = line.memory != nullptr;
  if (longer_too && line.session != 0 && !lookup->samples.empty()) {
    const size_t each = (shared ? line.part() : kMaxStreamedRead) / lookup->samples.size();
    lookup->entry_bytes = std::max(lookup->entry_bytes, each / kSlotAlignment * kSlotAlignment);
  }
  lookup->offset = shared ? (free - under_way_.begin()) * line.part() : 0;
  lookup->slot = shared ? std::min(SlotOf(lookup->entry_bytes), line.part()) : SlotOf(lookup->entry_bytes);
  if (line.session == 0 || lookup->slot == 0) return;
  lookup->room = shared ? line.part() / lookup->slot : std::max<size_t>(1, kMaxStreamedRead / lookup->slot);
  lookup->room = std::min(lookup->room, kMaxSamplesPerCall);
  // Otherwise the next lookup's time would pass while this one makes more calls.
  if (lookup->samples.size() <= lookup->room) AskForMore(lookup);
}

void Lookups::AskForMore(PendingLookup* lookup) {
  const auto rest = std::span(lookup->samples).subspan(lookup->asked);
  const auto samples = rest.first(std::min(rest.size(), lookup->room));
  if (samples.empty()) return;
  v1::GetRequest request;
  request.set_session(lookup->line.session);
  request.set_fingerprint(RawBytes(lookup->prefix));
  request.mutable_samples()->Add(samples.begin(), samples.end());
  request.set_offset(static_cast<int64_t>(lookup->offset));
  request.set_stride(static_cast<int64_t>(lookup->slot));
  const double bytes = static_cast<double>(samples.size() * lookup->slot);
  const absl::Duration reading = std::min(absl::Seconds(bytes / kSlowestBytesPerSecond), kLongestReading);
  // Lookups under way share the disk.
  const absl::Time deadline = absl::Now() + patience_ + static_cast<int>(CacheClient::kMaxLookups) * reading;
  lookup->call = std::make_unique<GetCall>(lookup->line.stub.get(), request, lookup->line.memory, deadline);
  lookup->asked += samples.size();
}

std::vector<CacheClient::Outcome> Lookups::Finish(PendingLookup* lookup,
                                                  absl::FunctionRef<void(size_t, const Entry&)> found) {
  using Outcome = CacheClient::Outcome;
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
    const EntryKey key{name_, lookup->prefix, lookup->samples[position]};
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
  std::ranges::replace(under_way_, lookup, nullptr);
  if (!good) attachment_.GiveUp(lookup->line);
  if (good && at > 0) attachment_.Answered(lookup->line);
  const MutexLock lock(&mutex_);
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

void Lookups::Abandon(PendingLookup* lookup) {
  // Its part of the memory is another lookup's only once the daemon has done with it.
  const bool writes = lookup->call != nullptr && lookup->line.memory != nullptr;
  if (writes && !lookup->call->Finish([](std::span<const std::byte>) {})) attachment_.GiveUp(lookup->line);
  std::ranges::replace(under_way_, lookup, nullptr);
}

CacheClient::LookupCounters Lookups::counters() const {
  const MutexLock lock(&mutex_);
  return counters_;
}

}  // namespace egeria::cache
