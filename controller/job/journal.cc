#include "controller/job/journal.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/storage/folder_lock.h"
#include "common/storage/free_space.h"
#include "common/storage/log_reader.h"
#include "common/storage/rocksdb_log.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace egeria::controller {
namespace {

constexpr char kVersionKey[] = "v";
constexpr char kVersion[] = "egeria-journal 1";
constexpr char kClockKey[] = "c";   // nanoseconds since 1970
constexpr char kFactPrefix = 'f';   // f <job id, 36 bytes> <sequence, 8 bytes big-endian>
constexpr char kAsidePrefix = 'q';  // the same, set aside
constexpr size_t kJobIdLength = 36;
constexpr size_t kKeyLength = 1 + kJobIdLength + 8;
// The database is opened only where its disk has this much room, which is more than it needs.
constexpr int64_t kRoomToOpen = int64_t{1} << 20;
constexpr absl::Duration kClockKeptEvery = absl::Seconds(10);
constexpr size_t kRescuedBatch = size_t{1} << 20;

rocksdb::WriteOptions Synced(bool sync = true) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  return options;
}

std::string JobPrefix(char kind, const JobId& job) { return absl::StrCat(std::string(1, kind), job.text()); }

std::string Key(char kind, const JobId& job, int64_t sequence) {
  std::string key = JobPrefix(kind, job);
  for (int shift = 56; shift >= 0; shift -= 8) {
    key.push_back(static_cast<char>(static_cast<uint64_t>(sequence) >> shift & 0xff));
  }
  return key;
}

int64_t SequenceOf(const rocksdb::Slice& key) {
  uint64_t sequence = 0;
  for (size_t i = kKeyLength - 8; i < kKeyLength; ++i) sequence = sequence << 8 | static_cast<uint8_t>(key[i]);
  return static_cast<int64_t>(sequence);
}

absl::Status ToStatus(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", status.ToString());
}

absl::Status IsFull(const std::string& folder, int64_t room) {
  return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "the disk of ", folder, " is full (", room,
                    " bytes free): make room there, or give --state-dir a folder on another disk");
}

absl::Status IsDamaged(const std::string& folder, const rocksdb::Status& status) {
  return NamedError(absl::StatusCode::kDataLoss, "JOURNAL_DAMAGED", "the journal in ", folder,
                    " cannot be read: put a copy of the folder in its place, or move it away (mv '", folder, "' '",
                    folder, ".damaged') and start again; jobs then register anew, and what they have frozen stays so (",
                    status.ToString(), ")");
}

// The inode of the lock of the database in `folder`; 0 where there is none.
ino_t LockFile(const std::string& folder) {
  struct stat info;
  return stat((folder + "/LOCK").c_str(), &info) == 0 ? info.st_ino : 0;
}

// Gives the log files a second name in `copies`, under which they outlive the database's own clean-up.
void LinkLogs(const std::string& folder, const std::string& copies) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    if (file.path().extension() != ".log" || file.file_size(error) == 0) continue;
    fs::create_directory(copies, error);
    fs::create_hard_link(file.path(), fs::path(copies) / file.path().filename(), error);
  }
}

// Gives the copies a name of their own, and returns it; empty where there are none.
std::string KeepLogs(const std::string& folder, const std::string& copies) {
  std::error_code error;
  for (int i = 1; i < 1'000; ++i) {
    const std::string kept = absl::StrCat(folder, ".damaged-", i);
    if (std::filesystem::exists(kept, error)) continue;
    std::filesystem::rename(copies, kept, error);
    return error ? "" : kept;
  }
  return "";
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(folder, error);
  // The names of jobs and how they go are nobody else's business.
  if (made) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  if (!error) return absl::OkStatus();
  const auto code =
      error == std::errc::permission_denied ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kUnavailable;
  return NamedError(code, "JOURNAL", "cannot make the state folder ", folder, ": ", error.message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& folder, const JournalOptions& options) {
  EGERIA_RETURN_IF_ERROR(MakeFolder(folder));
  if (const int64_t room = FreeBytes(folder); room < kRoomToOpen) return IsFull(folder, room);
  std::unique_ptr<Journal> journal(new Journal(folder, options));
  if (HasLostItsBeginning(folder)) return IsDamaged(folder, rocksdb::Status::Corruption("its file CURRENT is missing"));
  LinkLogs(folder, journal->LogCopies());
  EGERIA_RETURN_IF_ERROR(journal->OpenDatabase());
  EGERIA_RETURN_IF_ERROR(journal->ReadDamagedLogs());
  EGERIA_RETURN_IF_ERROR(journal->CheckVersion());
  EGERIA_RETURN_IF_ERROR(journal->StartClock());
  return journal;
}

Journal::Journal(std::string folder, const JournalOptions& options)
    : folder_(std::move(folder)), options_(options), marks_(folder_ + ".marks") {}

absl::Status Journal::OpenDatabase() {
  rocksdb::Options options;
  if (options_.env != nullptr) options.env = options_.env;
  options.info_log = std::make_shared<RocksdbLog>();
  options.create_if_missing = true;
  options.max_open_files = -1;  // all stay open, so that they can be read when the folder has vanished
  options.allow_fallocate = false;
  options.max_total_wal_size = uint64_t{64} << 20;
  options.write_buffer_size = size_t{8} << 20;
  // A block of the log that is damaged is left out, and what lies behind it is read. The marks tell what is missing.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(options, folder_, &db);
  if (opened.ok()) {
    db_.reset(db);
    lock_file_ = LockFile(folder_);
    return absl::OkStatus();
  }
  if (IsHeldByAnother(opened)) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STATE_DIR_IN_USE", "another controller uses ", folder_,
                      " (", opened.ToString(), "): stop it, or give this one another --state-dir");
  }
  return Explain(opened);
}

Journal::~Journal() {
  CatchUp(/*at_once=*/true).IgnoreError();
  if (!backlog_.empty()) {
    LogError("closing the journal: ", backlog_bytes_,
             " bytes could not be written and are lost: ", last_error_.message());
  }
  if (db_ == nullptr) return;
  if (absl::Status synced = Sync(); !synced.ok()) LogError("closing the journal: ", synced.ToString());
  if (rocksdb::Status closed = db_->Close(); !closed.ok()) LogError("closing the journal: ", closed.ToString());
}

// RocksDB leaves out more than the damaged records. All that follow are written once more: they are the same, or were
// left out.
absl::Status Journal::ReadDamagedLogs() {
  std::set<std::filesystem::path> logs;  // their names are numbers of one length
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(LogCopies(), error)) logs.insert(file.path());
  for (const std::filesystem::path& path : logs) {
    std::ifstream file(path, std::ios::binary);
    const LogContents log = ReadLog(std::string(std::istreambuf_iterator<char>(file), {}));
    damaged_places_ += log.damaged_places;
    if (damaged_places_ == 0) continue;
    LogError("the journal's log ", path.filename().string(), " is damaged in ", log.damaged_places, " places");
    for (const std::string& bytes : log.batches) {
      rocksdb::WriteBatch batch(bytes);
      EGERIA_RETURN_IF_ERROR(Explain(db_->Write(Synced(false), &batch)));
    }
  }
  return absl::OkStatus();
}

absl::Status Journal::Explain(const rocksdb::Status& status) const {
  if (status.IsCorruption() || status.IsPathNotFound()) return IsDamaged(folder_, status);
  return status.IsNoSpace() ? IsFull(folder_, FreeBytes(folder_)) : ToStatus(status);
}

absl::Status Journal::CheckVersion() {
  std::string version;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), kVersionKey, &version);
  if (found.IsNotFound()) {
    return Explain(db_->Put(Synced(), kVersionKey, kVersion));
  }
  EGERIA_RETURN_IF_ERROR(Explain(found));
  if (version == kVersion) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "JOURNAL_VERSION", "the journal says '", version,
                    "', this controller reads '", kVersion, "'");
}

absl::Status Journal::StartClock() {
  std::string kept;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), kClockKey, &kept);
  int64_t nanoseconds = 0;
  if (found.ok() && absl::SimpleAtoi(kept, &nanoseconds)) {
    clock_start_ = absl::FromUnixNanos(nanoseconds) + kClockKeptEvery;
    return absl::OkStatus();
  }
  return found.ok() || found.IsNotFound() ? absl::OkStatus() : Explain(found);
}

absl::Time Journal::Now() const { return clock_start_ + (MonotonicNow() - opened_at_); }

absl::StatusOr<std::vector<Journal::Damaged>> Journal::Replay(const Visitor& visit) {
  Marks last;
  EGERIA_ASSIGN_OR_RETURN(std::vector<Damaged> damaged, ReadAll(visit, &last));
  for (Damaged& job : damaged) {
    EGERIA_ASSIGN_OR_RETURN(job.aside, SetAside(job.job, job.kept + 1));
  }
  AddLost(last, &damaged);
  if (marks_.unreadable() > 0) {
    LogWarning("the journal's marks cannot be read for ", marks_.unreadable(),
               " jobs; nobody can tell whether the ends of their records are lost");
  }
  std::error_code error;
  if (damaged.empty() && damaged_places_ == 0) {
    std::filesystem::remove_all(LogCopies(), error);
  } else if (const std::string kept = KeepLogs(folder_, LogCopies()); !kept.empty()) {
    LogError("the journal is damaged; its logs as they were found are kept in ", kept);
  }
  EGERIA_RETURN_IF_ERROR(ToStatus(db_->SyncWAL()));
  if (const std::string why = marks_.Begin(last); !why.empty()) {
    LogWarning("the journal's marks cannot be written (", why, "), so that the next start cannot tell lost records");
  }
  return damaged;
}

absl::StatusOr<std::vector<Journal::Damaged>> Journal::ReadAll(const Visitor& visit, Marks* last) {
  std::vector<Damaged> damaged;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  std::optional<JobId> current;
  int64_t expected = 1;
  // Leaves the job that is being read, and goes on after its last record.
  auto give_up = [&](const std::string& reason, int64_t lost) {
    damaged.push_back({*current, reason, expected - 1, 0, lost});
    it->Seek(Key(kFactPrefix, *current, -1));
  };
  for (it->Seek(std::string(1, kFactPrefix)); it->Valid() && it->key()[0] == kFactPrefix;) {
    const rocksdb::Slice key = it->key();
    if (key.size() != kKeyLength) {
      LogError("the journal holds a key of ", key.size(), " bytes, which is none of its own; skipped");
      it->Next();
      continue;
    }
    JobId job(std::string(key.data() + 1, kJobIdLength));
    if (!current || *current != job) {
      current = job;
      expected = 1;
    }
    const int64_t sequence = SequenceOf(key);
    if (sequence != expected) {
      give_up(absl::StrCat("record ", expected, " is missing (the next one is ", sequence, ")"), sequence - expected);
      continue;
    }
    storage::v1::Fact fact;
    if (!fact.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) {
      give_up(absl::StrCat("record ", sequence, " cannot be parsed"), 0);
      continue;
    }
    if (absl::Status visited = visit(*current, sequence, fact); !visited.ok()) {
      give_up(absl::StrCat("record ", sequence, ": ", visited.message()), 0);
      continue;
    }
    (*last)[job] = expected++;
    it->Next();
  }
  EGERIA_RETURN_IF_ERROR(Explain(it->status()));
  return damaged;
}

void Journal::AddLost(const Marks& last, std::vector<Damaged>* damaged) const {
  for (const auto& [job, due] : marks_.due()) {
    const auto found = last.find(job);
    const int64_t kept = found == last.end() ? 0 : found->second;
    if (kept >= due) continue;
    const auto known = std::find_if(damaged->begin(), damaged->end(), [&](const Damaged& it) { return it.job == job; });
    if (known == damaged->end()) {
      damaged->push_back(
          {job, absl::StrCat("it ends with record ", kept, " where ", due, " is the last"), kept, 0, due - kept});
    } else {
      known->lost = std::max<int64_t>(known->lost, due - kept - known->aside);
    }
  }
}

absl::Status Journal::Append(const JobId& job, int64_t first_sequence, const std::vector<storage::v1::Fact>& facts,
                             bool sync) {
  if (facts.empty()) return sync ? Sync() : absl::OkStatus();
  rocksdb::WriteBatch batch;
  std::string value;
  int64_t sequence = first_sequence;
  for (const storage::v1::Fact& fact : facts) {
    value.clear();
    if (!fact.SerializeToString(&value)) {
      return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "a fact cannot be serialised");
    }
    EGERIA_RETURN_IF_ERROR(ToStatus(batch.Put(Key(kFactPrefix, job, sequence++), value)));
  }
  return Write({batch.Data(), job, sequence - 1}, sync);
}

absl::Status Journal::Remove(const JobId& job) {
  marks_.Clear(job);  // first, so that no mark asks for records that were removed
  rocksdb::WriteBatch batch;
  EGERIA_RETURN_IF_ERROR(ToStatus(batch.DeleteRange(Key(kFactPrefix, job, 0), Key(kFactPrefix, job, -1))));
  return Write({batch.Data(), job, 0}, /*sync=*/true);
}

absl::StatusOr<int64_t> Journal::SetAside(const JobId& job, int64_t first) {
  // Records that were set aside earlier for the same job are given up.
  rocksdb::WriteBatch batch;
  EGERIA_RETURN_IF_ERROR(ToStatus(batch.DeleteRange(Key(kAsidePrefix, job, 0), Key(kAsidePrefix, job, -1))));
  int64_t records = 0;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  const std::string prefix = JobPrefix(kFactPrefix, job);
  for (it->Seek(Key(kFactPrefix, job, first)); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    std::string aside = it->key().ToString();
    aside[0] = kAsidePrefix;
    EGERIA_RETURN_IF_ERROR(ToStatus(batch.Put(aside, it->value())));
    ++records;
  }
  it.reset();
  EGERIA_RETURN_IF_ERROR(ToStatus(batch.DeleteRange(Key(kFactPrefix, job, first), Key(kFactPrefix, job, -1))));
  EGERIA_RETURN_IF_ERROR(ToStatus(db_->Write(Synced(), &batch)));
  return records;
}

absl::Status Journal::Sync() {
  Tend();
  EGERIA_RETURN_IF_ERROR(health());
  EGERIA_RETURN_IF_ERROR(ToStatus(db_->SyncWAL()));
  marks_.Synced();
  return absl::OkStatus();
}

absl::Status Journal::Write(Record record, bool sync) {
  if (sync) {
    Tend();
  } else {
    CatchUp(/*at_once=*/false).IgnoreError();
  }
  if (backlog_.empty()) {
    rocksdb::WriteBatch batch(record.batch);
    last_error_ = ToStatus(db_->Write(Synced(sync), &batch));
    if (last_error_.ok()) {
      if (record.last > 0) marks_.Appended(record.job, record.last);
      if (sync) marks_.Synced();
      return absl::OkStatus();
    }
    ++errors_;
    next_attempt_ = MonotonicNow() + options_.retry;
    LogWarning("the journal cannot be written: ", last_error_.message(),
               "; new records wait in memory, and are lost if this controller ends first");
  } else if (backlog_bytes_ + record.batch.size() > options_.max_backlog_bytes) {
    return last_error_;
  }
  backlog_bytes_ += record.batch.size();
  backlog_.push_back(std::move(record));
  return absl::OkStatus();
}

absl::Status Journal::CatchUp(bool at_once) {
  if (backlog_.empty()) return absl::OkStatus();
  const absl::Time now = MonotonicNow();
  if (!at_once && now < next_attempt_) return last_error_;
  next_attempt_ = now + options_.retry;
  last_error_ = WriteBacklog();
  if (last_error_.ok()) {
    LogInfo("the journal can be written again, and has all that waited in memory");
  } else {
    ++errors_;
  }
  return last_error_;
}

absl::Status Journal::WriteBacklog() {
  const int64_t room = FreeBytes(folder_);
  if (room < kRoomToOpen + static_cast<int64_t>(backlog_bytes_)) return IsFull(folder_, room);
  db_.reset();  // after a failed write RocksDB takes no other
  EGERIA_RETURN_IF_ERROR(MakeFolder(folder_));
  EGERIA_RETURN_IF_ERROR(OpenDatabase());
  while (!backlog_.empty()) {
    const Record& record = backlog_.front();
    // A part of the log may have it already, with the same content.
    rocksdb::WriteBatch batch(record.batch);
    EGERIA_RETURN_IF_ERROR(ToStatus(db_->Write(Synced(false), &batch)));
    if (record.last > 0) marks_.Appended(record.job, record.last);
    backlog_bytes_ -= record.batch.size();
    backlog_.pop_front();
  }
  EGERIA_RETURN_IF_ERROR(ToStatus(db_->SyncWAL()));
  marks_.Synced();
  return absl::OkStatus();
}

void Journal::Tend() {
  if (db_ != nullptr && LockFile(folder_) != lock_file_) {
    LogError("the folder ", folder_,
             " has vanished or was replaced while the journal was in use; it is written again with all its records");
    ++errors_;
    last_error_ = NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "the folder ", folder_, " has vanished");
    TakeIntoMemory();
    db_.reset();
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), error);
    marks_.Begin({});
    next_attempt_ = absl::InfinitePast();
  }
  CatchUp(/*at_once=*/false).IgnoreError();
  if (backlog_.empty() && Now() - clock_kept_ > kClockKeptEvery) {
    clock_kept_ = Now();
    rocksdb::WriteBatch batch;
    batch.Put(kClockKey, absl::StrCat(absl::ToUnixNanos(clock_kept_)));
    Write({batch.Data(), JobId(), 0}, /*sync=*/false).IgnoreError();
  }
}

void Journal::TakeIntoMemory() {
  std::deque<Record> all;
  rocksdb::WriteBatch batch;
  Record record;
  const auto take = [&] {
    record.batch = batch.Data();
    backlog_bytes_ += record.batch.size();
    all.push_back(std::exchange(record, {}));
    batch.Clear();
  };
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const bool is_fact = it->key().size() == kKeyLength && it->key()[0] == kFactPrefix;
    const JobId job(is_fact ? std::string(it->key().data() + 1, kJobIdLength) : "");
    if (batch.Count() > 0 && (job != record.job || batch.GetDataSize() > kRescuedBatch)) take();
    record.job = job;
    record.last = is_fact ? SequenceOf(it->key()) : 0;
    batch.Put(it->key(), it->value());
  }
  if (batch.Count() > 0) take();
  if (!it->status().ok())
    LogError("the journal's folder has gone with records that were in no memory: ", it->status().ToString());
  backlog_.insert(backlog_.begin(), std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
}

absl::Status Journal::health() const {
  if (backlog_.empty()) return absl::OkStatus();
  return absl::Status(last_error_.code(), absl::StrCat("the journal cannot be written, and ", backlog_bytes_,
                                                       " bytes wait in memory: ", last_error_.message()));
}

std::string Journal::KeyForTest(const JobId& job, int64_t sequence) { return Key(kFactPrefix, job, sequence); }

}  // namespace egeria::controller
