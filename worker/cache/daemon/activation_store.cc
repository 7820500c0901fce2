#include "worker/cache/daemon/activation_store.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/status.h"
#include "common/storage/folder_lock.h"
#include "common/storage/free_space.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"
#include "worker/cache/daemon/flush_times.h"
#include "worker/cache/daemon/patient_files.h"
#include "worker/cache/daemon/store_format.h"
#include "worker/cache/daemon/targeted_files.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::cache {
namespace {

// RocksDB's own files take this much at most, and a sixteenth of a quota that is small.
constexpr int64_t kOwnFiles = int64_t{1} << 20;
// The file system's free space is looked at anew after this much has been written.
constexpr int64_t kLookEvery = int64_t{64} << 20;
// A new column family needs this much room, which is far more than is written for it.
constexpr int64_t kRoomForFamily = int64_t{1} << 20;
constexpr int64_t kRecoverEveryMilliseconds = 1'000;

// RocksDB's own files need this much room: some builds of RocksDB end the process where there is none.
constexpr int64_t kRoomToOpen = int64_t{8} << 20;

std::shared_ptr<rocksdb::ColumnFamilyHandle> Owned(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* handle) {
  return {handle, [db](rocksdb::ColumnFamilyHandle* last) { db->DestroyColumnFamilyHandle(last); }};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ActivationStore>> ActivationStore::Open(const Options& options) {
  EGERIA_RETURN_IF_ERROR(MakeFolder(options.folder));
  if (const int64_t room = FreeBytes(options.folder); room < kRoomToOpen) {
    return UnusableFolder(options.folder, absl::StrCat("its disk is full (", room, " bytes free)"));
  }
  std::unique_ptr<ActivationStore> store(new ActivationStore(options));
  EGERIA_RETURN_IF_ERROR(store->OpenFiles());
  return store;
}

ActivationStore::ActivationStore(const Options& options)
    : options_(options),
      files_(std::make_shared<PatientFiles>(rocksdb::FileSystem::Default())),
      flush_times_(std::make_shared<FlushTimes>()),
      environment_(rocksdb::NewCompositeEnv(std::make_shared<TargetedFiles>(files_))),
      memory_(options.memory_bytes) {}

ActivationStore::~ActivationStore() {
  DropRemoved();
  {
    const MutexLock lock(&mutex_);
    namespaces_.clear();
  }
  default_family_.reset();
  if (db_ != nullptr) db_->Close();  // writes the entries that are in memory
}

absl::Status ActivationStore::OpenFiles() {
  rocksdb::Options options = DatabaseOptions(options_.write_buffer_bytes, environment_.get());
  options.listeners = {flush_times_};
  rocksdb::DB* db = nullptr;
  std::vector<std::string> names;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::Status opened;
  for (const bool again : {false, true}) {
    if (!rocksdb::DB::ListColumnFamilies(options, options_.folder, &names).ok()) {
      names = {rocksdb::kDefaultColumnFamilyName};
    }
    std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
    for (const std::string& name : names) descriptors.emplace_back(name, FamilyOptions(options_.write_buffer_bytes));
    opened = HasLostItsBeginning(options_.folder)
                 ? rocksdb::Status::Corruption("its file CURRENT is missing")
                 : rocksdb::DB::Open(options, options_.folder, descriptors, &handles, &db);
    if (opened.ok() || again) break;
    if (IsHeldByAnother(opened)) {
      return NamedError(absl::StatusCode::kAlreadyExists, "STORE_IN_USE", "another egeria-cache uses ", options_.folder,
                        ": stop it, or give --folder another one");
    }
    if (!IsDamage(opened)) return UnusableFolder(options_.folder, opened.ToString());
    LogWarning("the cache in ", options_.folder,
               " cannot be read, and an empty one takes its place: ", opened.ToString(),
               "; the lists of its files are kept in ", KeepLists(options_.folder));
    rocksdb::DestroyDB(options_.folder, options);  // it removes only files of a RocksDB
  }
  if (!opened.ok()) return UnusableFolder(options_.folder, opened.ToString());
  db_.reset(db);
  const MutexLock lock(&mutex_);
  for (size_t i = 0; i < handles.size(); ++i) {
    std::shared_ptr<rocksdb::ColumnFamilyHandle> handle = Owned(db, handles[i]);
    if (names[i] == rocksdb::kDefaultColumnFamilyName) {
      default_family_ = std::move(handle);
    } else if (!ReadIndex(names[i], std::move(handle))) {
      LogWarning("the cache forgets ", names[i], ", which cannot be read");
    }
  }
  EvictIdleBeyondSoftQuota();
  return absl::OkStatus();
}

bool ActivationStore::ReadIndex(const std::string& family_name, std::shared_ptr<rocksdb::ColumnFamilyHandle> handle) {
  JobId name;
  Fingerprint prefix;
  KnownPrefix family{.handle = std::move(handle)};
  bool good = ParseFamilyName(family_name, &name, &prefix);
  if (good) {
    rocksdb::ReadOptions reading;
    const std::unique_ptr<rocksdb::Iterator> entry(db_->NewIterator(reading, family.handle.get()));
    for (entry->Seek(LengthKey(0)); entry->Valid() && IsLengthKey(entry->key()); entry->Next()) {
      uint32_t length = 0;
      if (entry->value().size() != sizeof(length)) continue;
      std::memcpy(&length, entry->value().data(), sizeof(length));
      family.entries[SampleOf(entry->key())].length = length;
      family.bytes += length + kOverhead;
    }
    good = entry->status().ok();
    // Entries that were discarded have left their bytes in the blob files.
    uint64_t blobs = 0;
    if (db_->GetIntProperty(family.handle.get(), rocksdb::DB::Properties::kTotalBlobFileSize, &blobs)) {
      family.bytes = std::max(family.bytes, static_cast<int64_t>(blobs));
    }
  }
  if (!good) {
    db_->DropColumnFamily(family.handle.get());
    return false;
  }
  KnownJob& space = namespaces_[name];
  space.bytes += family.bytes;
  bytes_ += family.bytes;
  space.prefixes.emplace(prefix, std::move(family));
  return true;
}

int64_t ActivationStore::Attach(const JobId& name, int64_t quota_bytes) {
  const int64_t most = options_.namespace_quota_bytes > 0
                           ? std::min(options_.namespace_quota_bytes, options_.quota_bytes)
                           : options_.quota_bytes;
  const int64_t granted = quota_bytes > 0 ? std::min(quota_bytes, most) : most;
  {
    const MutexLock lock(&mutex_);
    KnownJob& space = namespaces_[name];
    ++space.attached;
    space.last_used = ++uses_;
    space.quota_bytes = granted;
    while (space.bytes > granted && EvictPrefix(&space, nullptr)) {  // its quota was larger before
    }
  }
  DropRemoved();
  return granted;
}

void ActivationStore::Detach(const JobId& name) {
  {
    const MutexLock lock(&mutex_);
    const auto space = namespaces_.find(name);
    if (space == namespaces_.end()) return;
    space->second.last_used = ++uses_;
    --space->second.attached;
    if (space->second.attached <= 0) memory_.ForgetJob(&space->second);
    if (space->second.attached <= 0 && space->second.prefixes.empty()) namespaces_.erase(space);
    EvictIdleBeyondSoftQuota();
  }
  DropRemoved();
}

std::optional<ActivationStore::Outcome> ActivationStore::Enter(const JobId& name, const Fingerprint& prefix,
                                                               uint64_t sample, size_t length,
                                                               std::shared_ptr<rocksdb::ColumnFamilyHandle>* handle) {
  const int64_t cost = static_cast<int64_t>(length) + kOverhead;
  const MutexLock lock(&mutex_);
  const auto space = namespaces_.find(name);
  if (space == namespaces_.end()) return Outcome::kFailed;  // nobody is attached
  if (const KnownPrefix* known = FindFamily(name, prefix); known != nullptr && known->entries.contains(sample)) {
    return Outcome::kPresent;
  }
  if (!MakeRoom(name, prefix, cost)) return Outcome::kOverQuota;
  if (!DiskHasRoom(name, prefix, cost)) return Outcome::kNoSpace;
  KnownPrefix* const family = FindFamily(name, prefix);
  if (family == nullptr) return std::nullopt;
  *handle = family->handle;
  family->entries[sample].length = static_cast<uint32_t>(length);
  family->bytes += cost;
  family->last_used = MonotonicNow();
  space->second.bytes += cost;
  bytes_ += cost;
  return Outcome::kStored;
}

ActivationStore::Outcome ActivationStore::Put(const JobId& name, const Fingerprint& prefix, uint64_t sample,
                                              absl::string_view entry) {
  if (failed_.load()) Recover();
  std::shared_ptr<rocksdb::ColumnFamilyHandle> handle;
  std::optional<Outcome> entered = Enter(name, prefix, sample, entry.size(), &handle);
  if (!entered) {
    const Outcome made = MakeFamily(name, prefix);
    entered = made == Outcome::kStored ? Enter(name, prefix, sample, entry.size(), &handle) : made;
  }
  DropRemoved();
  const Outcome outcome = entered.value_or(Outcome::kBusy);  // the family was evicted meanwhile
  if (outcome != Outcome::kStored) return outcome;
  const auto length = static_cast<uint32_t>(entry.size());
  rocksdb::WriteBatch batch;
  batch.Put(handle.get(), EntryKey(sample), rocksdb::Slice(entry.data(), entry.size()));
  batch.Put(handle.get(), LengthKey(sample), rocksdb::Slice(reinterpret_cast<const char*>(&length), sizeof(length)));
  const rocksdb::Status written = db_->Write(EntryWrites(), &batch);
  if (written.ok()) {
    KeepInMemory(name, prefix, sample, std::as_bytes(std::span(entry)));
    return Outcome::kStored;
  }
  Forget(name, prefix, sample, /*frees_bytes=*/true);
  if (written.IsIncomplete()) return Outcome::kBusy;
  CountFailure("write", written.ToString());
  failed_ = true;
  return written.IsNoSpace() ? Outcome::kNoSpace : Outcome::kFailed;
}

size_t ActivationStore::Get(const JobId& name, const Fingerprint& prefix, uint64_t sample,
                            std::span<std::byte> memory) {
  std::shared_ptr<rocksdb::ColumnFamilyHandle> handle;
  size_t length = 0;
  KnownEntry entry_known;
  {
    const MutexLock lock(&mutex_);
    KnownPrefix* const family = FindFamily(name, prefix);
    if (family == nullptr) return 0;
    const auto known = family->entries.find(sample);
    if (known == family->entries.end() || known->second.length > memory.size()) return 0;
    entry_known = known->second;
    length = entry_known.length;
    family->last_used = MonotonicNow();
    handle = family->handle;
  }
  if (entry_known.bytes != nullptr) {
    std::memcpy(memory.data(), entry_known.bytes.get(), length);
    return length;
  }
  if (entry_known.place.Read(memory.first(length))) {
    KeepInMemory(name, prefix, sample, memory.first(length));
    return length;
  }
  rocksdb::ReadOptions reading;
  reading.verify_checksums = false;  // the entry has its own, which covers more
  const ReadTarget target(memory.first(length));
  rocksdb::PinnableSlice entry;
  const rocksdb::Status read = db_->Get(reading, handle.get(), EntryKey(sample), &entry);
  if (target.is_filled()) {
    Remember(name, prefix, sample, target.place());
    KeepInMemory(name, prefix, sample, memory.first(length));
    return length;
  }
  if (read.ok()) {                               // it is not in a file yet, or too small for a blob file
    if (entry.size() > memory.size()) return 0;  // written anew meanwhile
    std::memcpy(memory.data(), entry.data(), entry.size());
    return entry.size();
  }
  if (IsDamage(read)) Forget(name, prefix, sample, /*frees_bytes=*/false);
  if (!read.IsNotFound()) CountFailure("read", read.ToString());  // an entry that is just being written is not found
  return 0;
}

size_t ActivationStore::GetFromMemory(const JobId& name, const Fingerprint& prefix, std::span<const uint64_t> samples,
                                      std::byte* slots, size_t stride, std::span<int64_t> lengths) {
  std::vector<std::shared_ptr<const std::byte[]>> entries(samples.size());
  size_t on_disk = 0;
  {
    const MutexLock lock(&mutex_);
    KnownPrefix* const family = FindFamily(name, prefix);
    if (family != nullptr) family->last_used = MonotonicNow();
    for (size_t i = 0; i < samples.size(); ++i) {
      lengths[i] = 0;
      if (family == nullptr) continue;
      const auto known = family->entries.find(samples[i]);
      if (known == family->entries.end() || known->second.length > stride) continue;
      entries[i] = known->second.bytes;
      lengths[i] = entries[i] != nullptr ? known->second.length : kOnDisk;
      on_disk += entries[i] == nullptr;
    }
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (entries[i] != nullptr) std::memcpy(slots + i * stride, entries[i].get(), static_cast<size_t>(lengths[i]));
  }
  return on_disk;
}

void ActivationStore::Discard(const JobId& name, const Fingerprint& prefix, uint64_t sample) {
  std::shared_ptr<rocksdb::ColumnFamilyHandle> handle;
  {
    const MutexLock lock(&mutex_);
    KnownPrefix* const family = FindFamily(name, prefix);
    if (family == nullptr || !family->entries.contains(sample)) return;
    handle = family->handle;
  }
  rocksdb::WriteBatch batch;
  batch.Delete(handle.get(), EntryKey(sample));
  batch.Delete(handle.get(), LengthKey(sample));
  const rocksdb::Status written = db_->Write(EntryWrites(), &batch);
  if (!written.ok() && !written.IsIncomplete()) CountFailure("write", written.ToString());
  // This comes last: a client that learns that the entry is not there writes it anew, and that must follow the
  // deletion.
  Forget(name, prefix, sample, /*frees_bytes=*/false);
}

int64_t ActivationStore::DropPrefix(const JobId& name, const Fingerprint& prefix) {
  int64_t freed = 0;
  {
    const MutexLock lock(&mutex_);
    const auto space = namespaces_.find(name);
    if (space == namespaces_.end()) return 0;
    const auto family = space->second.prefixes.find(prefix);
    if (family != space->second.prefixes.end()) freed = Remove(&space->second, family);
  }
  DropRemoved();
  return freed;
}

ActivationStore::Totals ActivationStore::totals() const {
  const MutexLock lock(&mutex_);
  Totals totals;
  for (const auto& [name, space] : namespaces_) {
    ++totals.namespaces;
    for (const auto& [prefix, family] : space.prefixes) totals.entries += static_cast<int64_t>(family.entries.size());
  }
  totals.bytes = bytes_;
  totals.memory_bytes = memory_.bytes();
  totals.evicted_bytes = evicted_bytes_;
  totals.failures = failures_.load();
  return totals;
}

double ActivationStore::Fullness(const JobId& name) const {
  const MutexLock lock(&mutex_);
  int64_t attached = 0;
  for (const auto& [job, space] : namespaces_) attached += space.attached > 0 ? space.bytes : 0;
  const double of_all = static_cast<double>(attached) / static_cast<double>(options_.quota_bytes);
  const auto space = namespaces_.find(name);
  if (space == namespaces_.end() || space->second.quota_bytes == 0) return of_all;
  return std::max(of_all, static_cast<double>(space->second.bytes) / static_cast<double>(space->second.quota_bytes));
}

double ActivationStore::WritingSeconds(int64_t bytes) const {
  return static_cast<double>(bytes) * flush_times_->seconds_per_byte();
}

KnownPrefix* ActivationStore::FindFamily(const JobId& name, const Fingerprint& prefix) {
  const auto space = namespaces_.find(name);
  if (space == namespaces_.end()) return nullptr;
  const auto family = space->second.prefixes.find(prefix);
  return family == space->second.prefixes.end() ? nullptr : &family->second;
}

ActivationStore::Outcome ActivationStore::MakeFamily(const JobId& name, const Fingerprint& prefix) {
  const MutexLock making(&making_mutex_);
  {
    const MutexLock lock(&mutex_);
    if (FindFamily(name, prefix) != nullptr) return Outcome::kStored;
  }
  DropRemoved();  // a family of this name may be among them
  if (FreeBytes(options_.folder) < kRoomForFamily) return Outcome::kNoSpace;
  rocksdb::ColumnFamilyHandle* made = nullptr;
  const rocksdb::Status status =
      db_->CreateColumnFamily(FamilyOptions(options_.write_buffer_bytes), FamilyName(name, prefix), &made);
  if (!status.ok()) {
    CountFailure("make a column family", status.ToString());
    failed_ = true;
    return Outcome::kFailed;
  }
  std::shared_ptr<rocksdb::ColumnFamilyHandle> handle = Owned(db_.get(), made);
  const MutexLock lock(&mutex_);
  const auto space = namespaces_.find(name);
  if (space == namespaces_.end()) {
    removed_.push_back(std::move(handle));
    return Outcome::kFailed;  // nobody is attached any more
  }
  space->second.prefixes.emplace(prefix, KnownPrefix{.handle = std::move(handle), .last_used = MonotonicNow()});
  return Outcome::kStored;
}

bool ActivationStore::MakeRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) {
  KnownJob& space = namespaces_.at(name);
  const auto fits_job = [&] { return space.bytes + bytes <= space.quota_bytes; };
  while (!(fits_job() && Fits(bytes, soft_quota())) && EvictPrefix(&space, &prefix)) {
  }
  while (fits_job() && !Fits(bytes, soft_quota()) && EvictIdleNamespace(&name)) {
  }
  return fits_job() && Fits(bytes, options_.quota_bytes);
}

bool ActivationStore::Fits(int64_t bytes, int64_t quota) const {
  return bytes_ + bytes <= quota - std::min(kOwnFiles, quota / 16);
}

int64_t ActivationStore::soft_quota() const {
  if (options_.soft_quota_bytes == 0) return options_.quota_bytes;
  return std::min(options_.soft_quota_bytes, options_.quota_bytes);
}

void ActivationStore::EvictIdleBeyondSoftQuota() {
  while (!Fits(0, soft_quota()) && EvictIdleNamespace(nullptr)) {
  }
}

bool ActivationStore::EvictPrefix(KnownJob* space, const Fingerprint* kept) {
  const absl::Time used_before = MonotonicNow() - options_.idle_after;
  auto idle = space->prefixes.end();
  for (auto family = space->prefixes.begin(); family != space->prefixes.end(); ++family) {
    if (kept != nullptr && (family->first == *kept || family->second.last_used > used_before)) continue;
    if (idle == space->prefixes.end() || family->second.last_used < idle->second.last_used) idle = family;
  }
  if (idle == space->prefixes.end()) return false;
  evicted_bytes_ += Remove(space, idle);
  return true;
}

bool ActivationStore::EvictIdleNamespace(const JobId* writing) {
  auto idle = namespaces_.end();
  for (auto space = namespaces_.begin(); space != namespaces_.end(); ++space) {
    if (space->second.attached > 0 || (writing != nullptr && space->first == *writing)) continue;
    if (idle == namespaces_.end() || space->second.last_used < idle->second.last_used) idle = space;
  }
  if (idle == namespaces_.end()) return false;
  auto& prefixes = idle->second.prefixes;
  while (!prefixes.empty()) evicted_bytes_ += Remove(&idle->second, prefixes.begin());
  namespaces_.erase(idle);
  return true;
}

int64_t ActivationStore::Remove(KnownJob* space, std::map<Fingerprint, KnownPrefix>::iterator family) {
  const int64_t freed = family->second.bytes;
  removed_.push_back(std::move(family->second.handle));
  space->bytes -= freed;
  bytes_ -= freed;
  memory_.PrefixGoes(space, family->second);
  space->prefixes.erase(family);
  written_since_look_ = -1;
  return freed;
}

void ActivationStore::DropRemoved() {
  std::vector<std::shared_ptr<rocksdb::ColumnFamilyHandle>> removed;
  int64_t freed = 0;
  {
    const MutexLock lock(&mutex_);
    removed.swap(removed_);
    freed = memory_.TakeFreed();
  }
  if (freed > 0) malloc_trim(0);
  for (const auto& handle : removed) {
    const rocksdb::Status dropped = db_->DropColumnFamily(handle.get());
    if (dropped.ok()) continue;
    CountFailure("drop a column family", dropped.ToString());
    failed_ = true;
    const MutexLock lock(&mutex_);
    removed_.push_back(handle);  // to be tried again
  }
}

void ActivationStore::Remember(const JobId& name, const Fingerprint& prefix, uint64_t sample, const BlobPlace& place) {
  const MutexLock lock(&mutex_);
  KnownPrefix* const family = FindFamily(name, prefix);
  if (family == nullptr) return;
  if (const auto entry = family->entries.find(sample); entry != family->entries.end()) entry->second.place = place;
}

void ActivationStore::Forget(const JobId& name, const Fingerprint& prefix, uint64_t sample, bool frees_bytes) {
  const MutexLock lock(&mutex_);
  KnownPrefix* const family = FindFamily(name, prefix);
  if (family == nullptr) return;
  const auto entry = family->entries.find(sample);
  if (entry == family->entries.end()) return;
  KnownJob& space = namespaces_.at(name);
  memory_.Forget(&space, family, &entry->second);
  const int64_t cost = frees_bytes ? entry->second.length + kOverhead : 0;
  family->entries.erase(entry);
  family->bytes -= cost;
  space.bytes -= cost;
  bytes_ -= cost;
}

void ActivationStore::KeepInMemory(const JobId& name, const Fingerprint& prefix, uint64_t sample,
                                   std::span<const std::byte> entry) {
  if (entry.size() > MemoryTier::kMaxEntry) return;
  const MutexLock lock(&mutex_);
  KnownPrefix* const family = FindFamily(name, prefix);
  if (family != nullptr) memory_.Keep(&namespaces_, &namespaces_.at(name), family, sample, entry);
}

bool ActivationStore::DiskHasRoom(const JobId& name, const Fingerprint& prefix, int64_t bytes) {
  if (written_since_look_ < 0 || written_since_look_ > kLookEvery) {
    free_bytes_seen_ = FreeBytes(options_.folder);
    written_since_look_ = 0;
  }
  if (free_bytes_seen_ - bytes < options_.free_bytes) {
    written_since_look_ = -1;  // look again next time
    // RocksDB has to write a little when it drops something, and would wait on a disk without any room.
    if (free_bytes_seen_ >= kRoomForFamily && !EvictPrefix(&namespaces_.at(name), &prefix)) EvictIdleNamespace(&name);
    if (!std::exchange(disk_was_full_, true)) {
      LogWarning("the cache keeps nothing new while the disk of ", options_.folder, " has less than ",
                 options_.free_bytes, " bytes free (keep_free)");
    }
    return false;
  }
  if (std::exchange(disk_was_full_, false)) LogInfo("the cache keeps new entries again");
  free_bytes_seen_ -= bytes;
  written_since_look_ += bytes;
  return true;
}

void ActivationStore::CountFailure(const char* what, const std::string& why) {
  const int64_t count = failures_.fetch_add(1) + 1;
  if ((count & (count - 1)) == 0) LogWarning("the cache could not ", what, " (failure ", count, "): ", why);
}

// Tells RocksDB to go on: after some faults it refuses all writes until it is told so.
void ActivationStore::Recover() {
  const int64_t now = absl::ToUnixMillis(MonotonicNow());
  int64_t last = recovered_at_.load();
  if (now - last < kRecoverEveryMilliseconds || !recovered_at_.compare_exchange_strong(last, now)) return;
  if (files_->is_waiting()) return;
  failed_ = false;
  if (const rocksdb::Status status = db_->Resume(); !status.ok()) {
    failed_ = true;
    CountFailure("go on", status.ToString());
  }
}

bool ActivationStore::IsStuck() const { return files_->is_waiting(); }

absl::Status ActivationStore::Trouble() const {
  if (!std::filesystem::exists(options_.folder + "/CURRENT")) {
    return UnusableFolder(options_.folder, "its files have vanished; start egeria-cache again");
  }
  if (IsStuck()) return UnusableFolder(options_.folder, "its disk takes no more bytes");
  if (failed_) return UnusableFolder(options_.folder, "a write has failed");
  const MutexLock lock(&mutex_);
  if (!disk_was_full_) return absl::OkStatus();
  return UnusableFolder(options_.folder, absl::StrCat("its disk has less than ", options_.free_bytes, " bytes free"));
}

}  // namespace egeria::cache
