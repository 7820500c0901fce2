#include "worker/cache/client/cache_client.h"

#include <unistd.h>

#include <utility>

#include "worker/cache/client/attachment.h"
#include "worker/cache/client/lookups.h"
#include "worker/cache/client/write_queue.h"

namespace egeria::cache {

struct CacheClient::Impl {
  explicit Impl(const Options& options)
      : format(options.format), attachment(options), lookups(options, &attachment), writes(options, &attachment) {}

  Fingerprint Stored(const Fingerprint& prefix) const { return StoredPrefix(prefix, format); }

  const StorageFormat format;
  Attachment attachment;
  Lookups lookups;
  WriteQueue writes;
};

CacheClient::CacheClient(const Options& options) : pid_(getpid()), impl_(std::make_shared<Impl>(options)) {}

std::unique_ptr<CacheClient> CacheClient::Start(const Options& options) {
  std::unique_ptr<CacheClient> client(new CacheClient(options));
  Impl& impl = *client->impl_;
  impl.writes.Start();
  impl.attachment.Start([&impl](const Line& line) { impl.writes.Follow(line); });
  return client;
}

void CacheClient::Stop() {
  if (InChild()) {
    new std::shared_ptr<Impl>(impl_);  // its threads are the parent's; leaked on purpose
    return;
  }
  impl_->writes.Stop();
  impl_->attachment.Stop();
}

bool CacheClient::InChild() const { return getpid() != pid_; }

std::vector<CacheClient::Outcome> CacheClient::Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                      size_t entry_bytes,
                                                      absl::FunctionRef<void(size_t position, const Entry&)> found) {
  return FinishLookup(StartLookup(prefix, samples, entry_bytes).get(), found);
}

std::shared_ptr<PendingLookup> CacheClient::StartLookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                                        size_t entry_bytes) {
  const std::shared_ptr<Lookups> lookups(impl_, &impl_->lookups);  // one may be let go of after the client
  auto lookup = std::make_shared<PendingLookup>(lookups, impl_->Stored(prefix), samples, entry_bytes);
  if (!InChild()) lookups->Start(lookup.get());
  return lookup;
}

std::vector<CacheClient::Outcome> CacheClient::FinishLookup(
    PendingLookup* lookup, absl::FunctionRef<void(size_t position, const Entry&)> found) {
  if (InChild()) return std::vector<Outcome>(lookup->samples.size(), Outcome::kLate);
  const std::vector<Outcome> outcomes = impl_->lookups.Finish(lookup, found);
  // They are forgotten so that they are written anew when they are offered next.
  std::vector<uint64_t> corrupt;
  for (size_t i = 0; i < outcomes.size() && corrupt.size() < kMaxSamplesPerCall; ++i) {
    if (outcomes[i] == Outcome::kCorrupt) corrupt.push_back(lookup->samples[i]);
  }
  if (!corrupt.empty()) impl_->writes.DropSamples(lookup->prefix, std::move(corrupt));
  return outcomes;
}

bool CacheClient::Offer(const Fingerprint& prefix, uint64_t sample, uint64_t input_hash,
                        std::span<const EntryTensor> tensors) {
  return !InChild() && impl_->writes.Offer(impl_->Stored(prefix), sample, input_hash, tensors);
}

void CacheClient::Drop(const Fingerprint& prefix) {
  if (!InChild()) impl_->writes.Drop(impl_->Stored(prefix));
}

bool CacheClient::Flush(absl::Duration patience) { return InChild() || impl_->writes.Flush(patience); }

bool CacheClient::attached() const { return !InChild() && impl_->attachment.line().session != 0; }

CacheClient::Counters CacheClient::counters() const {
  if (InChild()) return {};
  return {impl_->lookups.counters(), impl_->writes.counters(), impl_->attachment.count(), impl_->attachment.streamed()};
}

}  // namespace egeria::cache
