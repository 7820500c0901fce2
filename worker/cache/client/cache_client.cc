#include "worker/cache/client/cache_client.h"

#include <utility>

#include "worker/cache/client/attachment.h"
#include "worker/cache/client/lookups.h"
#include "worker/cache/client/write_queue.h"

namespace egeria::cache {

struct CacheClient::Impl {
  explicit Impl(const Options& options)
      : format(options.format.format),
        attachment(options),
        lookups(options, &attachment),
        writes(options, &attachment) {}

  Fingerprint Stored(const Fingerprint& prefix) const { return StoredPrefix(prefix, format); }

  const StorageFormat format;
  Attachment attachment;
  Lookups lookups;
  WriteQueue writes;
};

std::unique_ptr<CacheClient> CacheClient::Start(const Options& options) {
  const auto impl = std::make_shared<Impl>(options);
  impl->writes.Start();
  impl->attachment.Start([impl = impl.get()](const Line& line) { impl->writes.Follow(line); });
  return std::unique_ptr<CacheClient>(new CacheClient(impl));
}

void CacheClient::Stop() {
  impl_.Call([](Impl& impl) {
    impl.writes.Stop();
    impl.attachment.Stop();
  });
}

std::vector<CacheClient::Outcome> CacheClient::Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                      size_t entry_bytes,
                                                      absl::FunctionRef<void(size_t position, const Entry&)> found) {
  return FinishLookup(StartLookup(prefix, samples, entry_bytes).get(), found);
}

std::shared_ptr<PendingLookup> CacheClient::StartLookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                        size_t entry_bytes, bool longer_too) {
  const std::shared_ptr<Impl> impl = impl_.shared();
  if (impl == nullptr) return std::make_shared<PendingLookup>(nullptr, prefix, samples, entry_bytes);
  const std::shared_ptr<Lookups> lookups(impl, &impl->lookups);  // the lookup may be let go of after the client
  auto lookup = std::make_shared<PendingLookup>(lookups, impl->Stored(prefix), samples, entry_bytes);
  lookups->Start(lookup.get(), longer_too);
  return lookup;
}

std::vector<CacheClient::Outcome> CacheClient::FinishLookup(
    PendingLookup* lookup, absl::FunctionRef<void(size_t position, const Entry&)> found) {
  Impl* const impl = impl_.get();
  if (impl == nullptr) return std::vector<Outcome>(lookup->samples.size(), Outcome::kLate);
  const std::vector<Outcome> outcomes = impl->lookups.Finish(lookup, found);
  // Corrupt entries are dropped, so that they are written anew when they are offered next.
  std::vector<uint64_t> corrupt;
  for (size_t i = 0; i < outcomes.size() && corrupt.size() < kMaxSamplesPerCall; ++i) {
    if (outcomes[i] == Outcome::kCorrupt) corrupt.push_back(lookup->samples[i]);
  }
  if (!corrupt.empty()) impl->writes.DropSamples(lookup->prefix, std::move(corrupt));
  return outcomes;
}

int64_t CacheClient::Offer(const Fingerprint& prefix, std::span<const Offered> entries) {
  return impl_.Call([&](Impl& impl) { return impl.writes.Offer(impl.Stored(prefix), entries); });
}

void CacheClient::CountOffering(absl::Duration taken) {
  impl_.Call([&](Impl& impl) { impl.writes.CountOffering(taken); });
}

void CacheClient::Drop(const Fingerprint& prefix) {
  impl_.Call([&](Impl& impl) { impl.writes.Drop(impl.Stored(prefix)); });
}

bool CacheClient::Flush(absl::Duration patience) {
  Impl* const impl = impl_.get();
  return impl == nullptr || impl->writes.Flush(patience);
}

bool CacheClient::attached() const {
  return impl_.Call([](Impl& impl) { return impl.attachment.line().session != 0; });
}

CacheClient::Counters CacheClient::counters() const {
  return impl_.Call([](Impl& impl) -> Counters {
    return {impl.lookups.counters(), impl.writes.counters(), impl.attachment.count(), impl.attachment.streamed()};
  });
}

}  // namespace egeria::cache
