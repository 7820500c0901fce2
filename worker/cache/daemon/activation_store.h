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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "worker/cache/daemon/memory_tier.h"
#include "worker/cache/daemon/store_index.h"
#include "worker/cache/daemon/targeted_files.h"
#include "worker/cache/entry/fingerprint.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
}  // namespace rocksdb

namespace egeria::cache {

class FlushTimes;
class PatientFiles;

// The daemon's entries on disk, in a RocksDB. Each namespace (a job) and frozen prefix has a column family of its own,
// so that its space is free at once when it is dropped. A crash may lose an entry but never change it: the entries
// carry their own checksums (see entry.h), and this class looks at none of them.
//
// When room is short, idle entries go first. Other prefixes of the namespace that writes go before namespaces that
// nobody has attached to, and the least recently used one goes first in each case. Prefixes that were in use a moment
// ago stay, since ranks may differ in theirs. When nothing idle is left, the new entry itself is refused. It is the one
// that is needed last, since each epoch takes every sample once. So the older entries give a hit rate of quota over
// size for any order of samples, and nothing is written twice.
//
// Small entries of jobs that run are in memory, too, from the write on or once they were read (see memory_tier.h).
//
// Thread-safe. No method waits for compaction or another process. Only methods that drop prefixes may wait for the
// disk's free space, and they do so without the lock.
class ActivationStore {
 public:
  struct Options {
    std::string folder;                       // is made; belongs to one daemon
    int64_t quota_bytes = int64_t{32} << 30;  // for all namespaces together
    int64_t soft_quota_bytes = 0;             // nothing idle stays beyond it, even if there is room; 0: quota_bytes
    int64_t namespace_quota_bytes = 0;        // for each namespace that asks for no less; 0: quota_bytes
    int64_t free_bytes = int64_t{2} << 30;    // nothing is stored where the file system has less free
    int64_t write_buffer_bytes = int64_t{64} << 20;  // in memory, before it is written
    int64_t memory_bytes = int64_t{1} << 30;         // for small entries that are on the disk as well
    absl::Duration idle_after = absl::Seconds(30);   // without a use, a prefix of a job that goes on is idle
  };

  enum class Outcome { kStored, kPresent, kOverQuota, kNoSpace, kBusy, kFailed };

  struct Totals {
    int64_t entries = 0;
    int64_t bytes = 0;         // entries and what the store adds to them
    int64_t memory_bytes = 0;  // the part that is in memory, too
    int64_t namespaces = 0;
    int64_t evicted_bytes = 0;
    int64_t failures = 0;  // reads and writes that RocksDB refused
  };

  // Opens the folder with its entries. Files that cannot be read are removed: this is a cache.
  // Errors: ALREADY_EXISTS [STORE_IN_USE] another process has it; UNAVAILABLE [STORE] the folder cannot be made or
  // written, or its disk is full.
  static absl::StatusOr<std::unique_ptr<ActivationStore>> Open(const Options& options);
  ~ActivationStore();

  // While a namespace is attached it is not evicted for others. AttachRequest explains `quota_bytes`. Returns the quota
  // that is in force.
  int64_t Attach(const JobId& name, int64_t quota_bytes);
  void Detach(const JobId& name);

  Outcome Put(const JobId& name, const Fingerprint& prefix, uint64_t sample, absl::string_view entry);

  // Copies the entry to the beginning of `memory` and returns its length: 0 where there is none, or where it is longer
  // than `memory`. All of `memory` may have been written in any case.
  size_t Get(const JobId& name, const Fingerprint& prefix, uint64_t sample, std::span<std::byte> memory);

  // Does what Get() does for many samples, each into a slot of `stride` bytes, as far as that takes no file. Fills in
  // `lengths`, and leaves kOnDisk for the other samples, whose number it returns.
  static constexpr int64_t kOnDisk = -1;
  size_t GetFromMemory(const JobId& name, const Fingerprint& prefix, std::span<const uint64_t> samples,
                       std::byte* slots, size_t stride, std::span<int64_t> lengths);

  // Forgets an entry that is not the one that was written, so that it can be written anew. Its bytes stay in use and
  // counted until its prefix goes.
  void Discard(const JobId& name, const Fingerprint& prefix, uint64_t sample);

  // Returns the bytes freed.
  int64_t DropPrefix(const JobId& name, const Fingerprint& prefix);

  Totals totals() const;

  // The part of the namespace's quota that is taken, or of the quota of all, by those that are attached, if it is more.
  double Fullness(const JobId& name) const;

  // Processor time that it takes in the background to write an entry of so many bytes to a file, as far as is known.
  double WritingSeconds(int64_t bytes) const;

  // Whether entries wait for a disk that cannot take them, so that the destructor would wait, too. A process that ends
  // without the destructor loses only these entries.
  bool IsStuck() const;

  // OK, or what keeps new entries from being stored.
  absl::Status Trouble() const;

 private:
  explicit ActivationStore(const Options& options);
  absl::Status OpenFiles();
  // Drops a family that cannot be read, and returns false for it.
  bool ReadIndex(const std::string& family_name, std::shared_ptr<rocksdb::ColumnFamilyHandle> handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does the part of Put() that needs the lock: returns kStored for an entry that is to be written. The entry is known
  // before it is written, so that the other ranks, which compute the same samples, do not write it too. The result is
  // empty where its prefix has no family yet.
  std::optional<Outcome> Enter(const JobId& name, const Fingerprint& prefix, uint64_t sample, size_t length,
                               std::shared_ptr<rocksdb::ColumnFamilyHandle>* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns null where there is none.
  KnownPrefix* FindFamily(const JobId& name, const Fingerprint& prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a family where there is none, and returns kStored where there is one afterwards. It works without the lock,
  // since it writes to the disk and may have to wait for it.
  Outcome MakeFamily(const JobId& name, const Fingerprint& prefix) ABSL_LOCKS_EXCLUDED(mutex_, making_mutex_);
  // Whether the store fits into `quota` with `bytes` more.
  bool Fits(int64_t bytes, int64_t quota) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t soft_quota() const;
  // Removes idle entries until `bytes` more of this prefix fit into the soft quota. Returns false if they do not fit
  // into the quota.
  bool MakeRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the least recently used prefix of the namespace: an idle one other than `kept`, or any where `kept` is
  // null. Returns false where there is none.
  bool EvictPrefix(KnownJob* space, const Fingerprint* kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the least recently used namespace that is idle. Returns false where there is none. The namespace `writing`
  // stays, since a call of its session may go on after the session has ended.
  bool EvictIdleNamespace(const JobId* writing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes idle namespaces, while nothing is written, until the others fit into the soft quota.
  void EvictIdleBeyondSoftQuota() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t Remove(KnownJob* space, std::map<Fingerprint, KnownPrefix>::iterator family)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the families that were removed. It works without the lock, since it writes to the disk.
  void DropRemoved() ABSL_LOCKS_EXCLUDED(mutex_);
  void Remember(const JobId& name, const Fingerprint& prefix, uint64_t sample, const BlobPlace& place)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void KeepInMemory(const JobId& name, const Fingerprint& prefix, uint64_t sample, std::span<const std::byte> entry)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets an entry. `frees_bytes`: it was not written; else it cannot be read, and its bytes stay in use.
  void Forget(const JobId& name, const Fingerprint& prefix, uint64_t sample, bool frees_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Where the disk has no room, removes something idle, so that the next entries may fit.
  bool DiskHasRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountFailure(const char* what, const std::string& why);
  void Recover() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::shared_ptr<PatientFiles> files_;
  const std::shared_ptr<FlushTimes> flush_times_;
  const std::unique_ptr<rocksdb::Env> environment_;
  std::unique_ptr<rocksdb::DB> db_;
  std::shared_ptr<rocksdb::ColumnFamilyHandle> default_family_;

  Mutex making_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // lets one family be made at a time
  mutable Mutex mutex_;
  std::map<JobId, KnownJob> namespaces_ ABSL_GUARDED_BY(mutex_);
  MemoryTier memory_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evicted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<rocksdb::ColumnFamilyHandle>> removed_ ABSL_GUARDED_BY(mutex_);  // to be dropped
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t free_bytes_seen_ ABSL_GUARDED_BY(mutex_) = 0;      // at the last look, less the bytes written since
  int64_t written_since_look_ ABSL_GUARDED_BY(mutex_) = -1;  // -1: never looked
  bool disk_was_full_ ABSL_GUARDED_BY(mutex_) = false;       // at the last look
  std::atomic<int64_t> failures_{0};
  std::atomic<bool> failed_{false};       // whether a write failed since the last attempt to go on
  std::atomic<int64_t> recovered_at_{0};  // milliseconds since the epoch
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_ACTIVATION_STORE_H_
