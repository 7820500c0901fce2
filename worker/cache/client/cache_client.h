#ifndef EGERIA_WORKER_CACHE_CLIENT_CACHE_CLIENT_H_
#define EGERIA_WORKER_CACHE_CLIENT_CACHE_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/rpc/address.h"
#include "common/thread/fork_guard.h"
#include "worker/cache/entry/entry.h"

namespace egeria::cache {

struct PendingLookup;

// Is a training process's line to the egeria-cache of its node.
//
// Nothing here fails. Without a daemon, or with one that is slow or has ended, every lookup is a miss and every offer
// is dropped. A thread of the client's own attaches anew when the daemon is back. An entry that a lookup finds has been
// checked against its key and its checksum.
//
// Lookups are for one thread, and all else for one, which may be another; the client's own threads attach and write. In
// a forked child every method does nothing.
class CacheClient {
 public:
  struct Options {
    rpc::Address address;                     // the daemon's, a Unix socket
    JobId name;                               // the job, whose entries no other job sees
    int64_t quota_bytes = 0;                  // 0: the daemon's
    size_t shared_bytes = size_t{128} << 20;  // shared memory; a third for offers, the rest for lookups
    size_t queue_bytes = size_t{128} << 20;   // offers that wait to be written
    // Entries are written like this. They are read in any format, but rounded ones only where the format is the same.
    WantedFormat format;
    // The daemon is waited for so long, besides what reading takes; what is later is a miss.
    absl::Duration patience = absl::Milliseconds(250);
  };

  struct LookupCounters {
    int64_t found = 0;
    int64_t absent = 0;
    int64_t corrupt = 0;
    int64_t late = 0;  // the daemon did not answer in time, or is not there
    int64_t bytes_read = 0;
    double lookup_seconds = 0;
  };
  struct WriteCounters {
    int64_t offered = 0;
    int64_t dropped = 0;  // the queue was full
    int64_t stored = 0;
    int64_t refused = 0;  // over quota, no space, or the store failed
    // Processor time of offers: on the threads that made them, on the client's own, and in the daemon, where it is
    // partly an estimate (PutResponse.processor_seconds).
    double offer_seconds = 0;
    double write_seconds = 0;
    double daemon_seconds = 0;
    // Writing has taken so much of others than the threads that offer.
    double seconds_behind() const { return write_seconds + daemon_seconds; }

    // These are about the newest prefix, where the format is not exact: the bytes that its entries would take in the
    // exact format, and those that they take. The root mean square of the rounding and the largest one follow, both
    // divided by the values' root mean square.
    int64_t exact_bytes = 0;
    int64_t format_bytes = 0;
    double rounding = 0;
    double largest_rounding = 0;
  };
  struct Counters : LookupCounters, WriteCounters {
    int64_t attached = 0;   // how often
    bool streamed = false;  // there is no shared memory
  };

  static std::unique_ptr<CacheClient> Start(const Options& options);
  ~CacheClient() { Stop(); }

  // Ends the client's threads, within a second; what waits to be written is dropped. From then on everything is a miss.
  // Idempotent.
  void Stop();

  enum class Outcome : uint8_t { kFound, kAbsent, kCorrupt, kLate };

  // Looks samples of one prefix up. `found` is called for each that is found, in order, with its position and its
  // entry, which is valid during the call. Waits for the daemon as long as `patience` says and a slow disk takes, for
  // each part of what is asked for that fits into the shared memory. A daemon that was too slow is left alone for a
  // second, and twice as long each time, up to a minute. `entry_bytes` is EntrySize() of what is expected; longer
  // entries are not found.
  std::vector<Outcome> Lookup(const Fingerprint& prefix, std::span<const uint64_t> samples, size_t entry_bytes,
                              absl::FunctionRef<void(size_t position, const Entry&)> found);

  // Together these do what Lookup() does: the daemon reads while what was asked for before is finished. Where more than
  // kMaxLookups are under way the last ones find nothing. One that is let go of unfinished waits for the daemon all the
  // same.
  //
  // With `longer_too` longer entries are found as well, as far as the memory for one call has room for all of them.
  static constexpr size_t kMaxLookups = 2;
  std::shared_ptr<PendingLookup> StartLookup(const Fingerprint& prefix, std::span<const uint64_t> samples,
                                             size_t entry_bytes, bool longer_too = false);
  std::vector<Outcome> FinishLookup(PendingLookup* lookup,
                                    absl::FunctionRef<void(size_t position, const Entry&)> found);

  // Describes what is to be kept of a sample. The tensors' memory belongs to others.
  struct Offered {
    uint64_t sample;
    uint64_t input_hash;
    std::vector<EntryTensor> tensors;
  };
  // Takes copies of entries, such as those of a batch, to be written when there is time. Returns how many it took; the
  // others are dropped.
  int64_t Offer(const Fingerprint& prefix, std::span<const Offered> entries);

  // Counts processor time that a thread has spent on offers (WriteCounters.offer_seconds).
  void CountOffering(absl::Duration taken);

  // Forgets this prefix, in the background, in order with the offers.
  void Drop(const Fingerprint& prefix);

  // Waits until all that was offered and dropped before has been done, or given up; false after `patience`.
  bool Flush(absl::Duration patience);

  bool attached() const;
  Counters counters() const;

 private:
  struct Impl;
  explicit CacheClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  const ForkGuard<Impl> impl_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_CACHE_CLIENT_H_
