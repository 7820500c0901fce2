#ifndef EGERIA_WORKER_CACHE_DAEMON_ACTIVATION_STORE_H_
#define EGERIA_WORKER_CACHE_DAEMON_ACTIVATION_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "worker/cache/daemon/targeted_files.h"
#include "worker/cache/entry/fingerprint.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
}  // namespace rocksdb

namespace egeria::cache {

class PatientFiles;

// The daemon's entries on disk, in a RocksDB: one column family per namespace (a job) and frozen prefix,
// so that forgetting either gives its space back at once. A crash may lose an entry, never change it: the
// entries carry their own checksums (see entry.h), and this class looks at none of them.
//
// When room is short, idle entries go first: other prefixes of the namespace that writes, unless they were in use a
// moment ago (ranks may differ in theirs), and then namespaces that nobody has attached to, the least recently used
// first in each case. After them the new entry itself is refused. A new entry is the one that is needed last, since
// each epoch takes every sample once: keeping the older ones gives a hit rate of quota over size for any order of
// samples, and writes nothing twice.
//
// Thread-safe. No method waits for compaction or another process. Only methods that drop prefixes may wait for the
// disk's free space, and they do so without the lock.
class ActivationStore {
 public:
  struct Options {
    std::string folder;                       // is made; belongs to one daemon
    int64_t quota_bytes = int64_t{32} << 30;  // for all namespaces together
    int64_t soft_quota_bytes = 0;             // nothing idle stays beyond it, though there is room; 0: quota_bytes
    int64_t namespace_quota_bytes = 0;        // for each that asks for no less; 0: quota_bytes
    int64_t free_bytes = int64_t{2} << 30;    // the file system keeps so much free, or nothing is stored
    int64_t write_buffer_bytes = int64_t{64} << 20;  // in memory, before it is written
    absl::Duration idle_after = absl::Seconds(30);   // without a use, a prefix of a job that goes on is idle
  };

  enum class Outcome { kStored, kPresent, kOverQuota, kNoSpace, kBusy, kFailed };

  struct Totals {
    int64_t entries = 0;
    int64_t bytes = 0;  // of entries, with what the store adds to them
    int64_t namespaces = 0;
    int64_t evicted_bytes = 0;
    int64_t failures = 0;  // reads and writes that RocksDB refused
  };

  // Opens the folder with what it holds. What cannot be read is removed: it is a cache.
  // Errors: ALREADY_EXISTS [STORE_IN_USE] another process has it; UNAVAILABLE [STORE] the folder cannot be made or
  // written, or its disk is full.
  static absl::StatusOr<std::unique_ptr<ActivationStore>> Open(const Options& options);
  ~ActivationStore();

  // While a namespace is attached it is not evicted for others. `quota_bytes`: see AttachRequest. Returns the quota
  // that is in force.
  int64_t Attach(const JobId& name, int64_t quota_bytes);
  void Detach(const JobId& name);

  Outcome Put(const JobId& name, const Fingerprint& prefix, uint64_t sample, absl::string_view entry);

  // Copies the entry to the beginning of `memory` and returns its length: 0 where there is none, or it is longer than
  // that. Whatever it returns, all of `memory` may have been written.
  size_t Get(const JobId& name, const Fingerprint& prefix, uint64_t sample, std::span<std::byte> memory);

  // Forgets an entry that is not what was written, so that it can be written anew. Its bytes stay in use, and counted,
  // until its prefix goes.
  void Discard(const JobId& name, const Fingerprint& prefix, uint64_t sample);

  // Returns the bytes freed.
  int64_t DropPrefix(const JobId& name, const Fingerprint& prefix);

  Totals totals() const;

  // Whether what waits to be written cannot be, so that the destructor would wait for the disk. A process that ends
  // without it loses what waits, and no more.
  bool IsStuck() const;

 private:
  struct Known {
    uint32_t length = 0;
    BlobPlace place;  // known once it was read
  };
  struct Family {
    std::shared_ptr<rocksdb::ColumnFamilyHandle> handle;
    std::unordered_map<uint64_t, Known> entries;  // by sample
    int64_t bytes = 0;
    absl::Time last_used = absl::InfinitePast();
  };
  struct Namespace {
    std::map<Fingerprint, Family> prefixes;
    int attached = 0;
    int64_t quota_bytes = 0;
    uint64_t last_used = 0;
    int64_t bytes = 0;
  };

  explicit ActivationStore(const Options& options);
  absl::Status OpenFiles();
  // False for a family that cannot be read, which is then dropped.
  bool ReadIndex(const std::string& family_name, std::shared_ptr<rocksdb::ColumnFamilyHandle> handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does the part of Put() that needs the lock: kStored for an entry that is to be written. The entry is known before
  // it is written, so that the other ranks, which compute the same samples, do not write it too. Empty where its prefix
  // has no family yet.
  std::optional<Outcome> Enter(const JobId& name, const Fingerprint& prefix, uint64_t sample, size_t length,
                               std::shared_ptr<rocksdb::ColumnFamilyHandle>* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null where there is none.
  Family* FindFamily(const JobId& name, const Fingerprint& prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a family where there is none: without the lock, since that writes to the disk, for which it may have to
  // wait. kStored where there is one afterwards.
  Outcome MakeFamily(const JobId& name, const Fingerprint& prefix) ABSL_LOCKS_EXCLUDED(mutex_, making_mutex_);
  // Whether the store fits into `quota` with `bytes` more.
  bool Fits(int64_t bytes, int64_t quota) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t soft_quota() const;
  // Removes what is idle until `bytes` more of this prefix fit into the soft quota. False if they do not fit into the
  // quota.
  bool MakeRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Both remove what was not used for longest, and return false where there is nothing: an idle prefix of the namespace
  // but this one, or, where none is given, any prefix; and an idle namespace, never that of `writing`: its session may
  // have ended while a call of it goes on, which holds on to it.
  bool EvictPrefix(Namespace* space, const Fingerprint* kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EvictIdleNamespace(const JobId* writing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes idle namespaces, while nothing is written, until the others fit into the soft quota.
  void EvictIdleBeyondSoftQuota() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Remove(Namespace* space, std::map<Fingerprint, Family>::iterator family)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops what was removed: without the lock, since that writes to the disk.
  void DropRemoved() ABSL_LOCKS_EXCLUDED(mutex_);
  void Remember(const JobId& name, const Fingerprint& prefix, uint64_t sample, const BlobPlace& place)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The first forgets an entry that was not written; the second one that cannot be read, whose bytes stay in use.
  void Forget(const JobId& name, const Fingerprint& prefix, uint64_t sample) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetUnreadable(const JobId& name, const Fingerprint& prefix, uint64_t sample) ABSL_LOCKS_EXCLUDED(mutex_);
  // Where the disk has no room, something idle makes some, so that the next entries may fit.
  bool DiskHasRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountFailure(const char* what, const std::string& why);
  void Recover() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::shared_ptr<PatientFiles> files_;
  const std::unique_ptr<rocksdb::Env> environment_;
  std::unique_ptr<rocksdb::DB> db_;
  std::shared_ptr<rocksdb::ColumnFamilyHandle> default_family_;

  Mutex making_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // lets one family be made at a time
  mutable Mutex mutex_;
  std::map<JobId, Namespace> namespaces_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evicted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<rocksdb::ColumnFamilyHandle>> removed_ ABSL_GUARDED_BY(mutex_);  // to be dropped
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t free_bytes_seen_ ABSL_GUARDED_BY(mutex_) = 0;      // as of the last look, less what was written since
  int64_t written_since_look_ ABSL_GUARDED_BY(mutex_) = -1;  // -1: never looked
  bool disk_was_full_ ABSL_GUARDED_BY(mutex_) = false;       // as of the last look
  std::atomic<int64_t> failures_{0};
  std::atomic<bool> failed_{false};       // whether a write failed since the last attempt to go on
  std::atomic<int64_t> recovered_at_{0};  // milliseconds since the epoch
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_ACTIVATION_STORE_H_
