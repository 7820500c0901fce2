#ifndef EGERIA_WORKER_CACHE_CLIENT_LOOKUPS_H_
#define EGERIA_WORKER_CACHE_CLIENT_LOOKUPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "worker/cache/client/attachment.h"
#include "worker/cache/client/cache_client.h"
#include "worker/cache/client/get_call.h"
#include "worker/cache/entry/entry.h"

namespace egeria::cache {

class Lookups;

// A lookup that was started and is to be finished. `lookups` is null in a forked child, where nothing is started.
struct PendingLookup {
  PendingLookup(std::shared_ptr<Lookups> lookups, const Fingerprint& prefix, std::span<const uint64_t> samples,
                size_t entry_bytes)
      : lookups(std::move(lookups)),
        prefix(prefix),
        samples(samples.begin(), samples.end()),
        entry_bytes(entry_bytes) {}
  ~PendingLookup();
  PendingLookup(const PendingLookup&) = delete;
  PendingLookup& operator=(const PendingLookup&) = delete;

  const std::shared_ptr<Lookups> lookups;
  const Fingerprint prefix;  // as StoredPrefix() says
  const std::vector<uint64_t> samples;
  size_t entry_bytes;  // longer entries are not found
  Line line;
  size_t offset = 0;  // where its part of the shared memory begins
  size_t slot = 0;    // bytes for an entry there
  size_t room = 0;    // samples that fit into a call; 0: nothing can be asked for
  size_t asked = 0;   // how many samples, from the first on, were asked for
  std::unique_ptr<GetCall> call;
};

// Does what CacheClient::Lookup() and its two parts promise. One thread may call it, and any thread counters().
class Lookups {
 public:
  // `attachment` must outlive it.
  Lookups(const CacheClient::Options& options, Attachment* attachment)
      : name_(options.name), patience_(options.patience), attachment_(*attachment) {}

  void Start(PendingLookup* lookup, bool longer_too);
  // Waits for the lookup.
  std::vector<CacheClient::Outcome> Finish(PendingLookup* lookup, absl::FunctionRef<void(size_t, const Entry&)> found);
  // Lets go of a lookup that nobody will finish.
  void Abandon(PendingLookup* lookup);

  CacheClient::LookupCounters counters() const;

 private:
  // Asks for as many more samples as fit into one call.
  void AskForMore(PendingLookup* lookup);

  const JobId name_;
  const absl::Duration patience_;
  Attachment& attachment_;
  std::array<const PendingLookup*, CacheClient::kMaxLookups> under_way_ = {};  // by part of the memory

  mutable Mutex mutex_;
  CacheClient::LookupCounters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_LOOKUPS_H_
