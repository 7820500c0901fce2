#include "controller/job/journal.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/storage/folder_lock.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "rocksdb/write_batch.h"

namespace egeria::controller {
namespace {

constexpr char kVersionKey[] = "v";
constexpr char kVersion[] = "egeria-journal 1";
constexpr char kFactPrefix = 'f';   // f <job id, 36 bytes> <sequence, 8 bytes big-endian>
constexpr char kAsidePrefix = 'q';  // the same, set aside
constexpr size_t kJobIdLength = 36;
constexpr size_t kKeyLength = 1 + kJobIdLength + 8;

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
  std::unique_ptr<Journal> journal(new Journal(folder, options));
  EGERIA_RETURN_IF_ERROR(journal->OpenDatabase());
  EGERIA_RETURN_IF_ERROR(journal->CheckVersion());
  return journal;
}

Journal::Journal(std::string folder, const JournalOptions& options) : folder_(std::move(folder)), options_(options) {}

absl::Status Journal::OpenDatabase() {
  rocksdb::Options options;
  if (options_.env != nullptr) options.env = options_.env;
  options.create_if_missing = true;
  options.max_open_files = 64;
  options.keep_log_file_num = 2;
  options.max_total_wal_size = uint64_t{64} << 20;
  options.write_buffer_size = size_t{8} << 20;
  // The end of the log that a crash of the machine has torn is dropped; everything synced lies before it.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(options, folder_, &db);
  if (opened.ok()) {
    db_.reset(db);
    return absl::OkStatus();
  }
  if (IsHeldByAnother(opened)) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STATE_DIR_IN_USE", "another controller uses ", folder_,
                      " (", opened.ToString(), "): stop it, or give this one another --state-dir");
  }
  return ToStatus(opened);
}

absl::Status Journal::EnsureUsable() {
  if (!doubtful_) return absl::OkStatus();
  const absl::Time now = absl::Now();
  if (now < next_attempt_) return last_error_;
  next_attempt_ = now + options_.retry;
  db_.reset();
  last_error_ = OpenDatabase();
  if (!last_error_.ok()) return last_error_;
  last_error_ = ToStatus(db_->DeleteRange(Synced(), db_->DefaultColumnFamily(),
                                          Key(kFactPrefix, doubtful_->job, doubtful_->first_sequence),
                                          Key(kFactPrefix, doubtful_->job, -1)));
  if (!last_error_.ok()) return last_error_;
  doubtful_.reset();
  LogInfo("the journal can be written again");
  return absl::OkStatus();
}

Journal::~Journal() {
  if (db_ == nullptr) return;
  if (absl::Status synced = Sync(); !synced.ok()) LogError("closing the journal: ", synced.ToString());
  if (rocksdb::Status closed = db_->Close(); !closed.ok()) LogError("closing the journal: ", closed.ToString());
}

absl::Status Journal::CheckVersion() {
  std::string version;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), kVersionKey, &version);
  if (found.IsNotFound()) {
    return ToStatus(db_->Put(Synced(), kVersionKey, kVersion));
  }
  EGERIA_RETURN_IF_ERROR(ToStatus(found));
  if (version == kVersion) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "JOURNAL_VERSION", "the journal says '", version,
                    "', this controller reads '", kVersion, "'");
}

absl::StatusOr<std::vector<Journal::Quarantined>> Journal::Replay(const Visitor& visit) {
  std::vector<Quarantined> quarantined;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  std::string resume(1, kFactPrefix);
  std::optional<JobId> current;
  int64_t expected = 1;
  // Leaves the job that is being read, and goes on after its last record.
  auto give_up = [&](const std::string& reason) {
    quarantined.push_back({*current, reason, 0});
    resume = Key(kFactPrefix, *current, -1);
    it->Seek(resume);
  };
  for (it->Seek(resume);;) {
    if (!it->Valid()) {
      if (it->status().ok()) break;
      // A damaged block hides the records after it: the job that was being read cannot be trusted. Where the same place
      // fails again, the database is damaged, not the job.
      const bool again = !quarantined.empty() && current && quarantined.back().job == *current;
      if (!current || again) return ToStatus(it->status());
      give_up(it->status().ToString());
      continue;
    }
    const rocksdb::Slice key = it->key();
    if (key[0] != kFactPrefix) break;
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
      give_up(absl::StrCat("record ", expected, " is missing (the next one is ", sequence, ")"));
      continue;
    }
    storage::v1::Fact fact;
    if (!fact.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) {
      give_up(absl::StrCat("record ", sequence, " cannot be parsed"));
      continue;
    }
    if (absl::Status visited = visit(*current, sequence, fact); !visited.ok()) {
      give_up(absl::StrCat("record ", sequence, ": ", visited.message()));
      continue;
    }
    ++expected;
    it->Next();
  }
  it.reset();
  for (Quarantined& job : quarantined) {
    EGERIA_ASSIGN_OR_RETURN(job.records, SetAside(job.job));
  }
  return quarantined;
}

absl::Status Journal::Append(const JobId& job, int64_t first_sequence, const std::vector<storage::v1::Fact>& facts,
                             bool sync) {
  EGERIA_RETURN_IF_ERROR(EnsureUsable());
  if (facts.empty()) return sync ? Sync() : absl::OkStatus();
  const int64_t first = first_sequence;
  rocksdb::WriteBatch batch;
  std::string value;
  for (const storage::v1::Fact& fact : facts) {
    value.clear();
    if (!fact.SerializeToString(&value)) {
      return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "a fact cannot be serialised");
    }
    EGERIA_RETURN_IF_ERROR(ToStatus(batch.Put(Key(kFactPrefix, job, first_sequence++), value)));
  }
  absl::Status written = ToStatus(db_->Write(Synced(sync), &batch));
  if (!written.ok()) {
    doubtful_ = Doubtful{job, first};
    last_error_ = written;
    next_attempt_ = absl::Now() + options_.retry;
  }
  return written;
}

absl::Status Journal::Remove(const JobId& job) {
  EGERIA_RETURN_IF_ERROR(EnsureUsable());
  return ToStatus(
      db_->DeleteRange(Synced(), db_->DefaultColumnFamily(), Key(kFactPrefix, job, 0), Key(kFactPrefix, job, -1)));
}

absl::StatusOr<int64_t> Journal::SetAside(const JobId& job) {
  EGERIA_RETURN_IF_ERROR(EnsureUsable());
  // Records that were set aside earlier for the same job are given up.
  rocksdb::WriteBatch batch;
  EGERIA_RETURN_IF_ERROR(ToStatus(batch.DeleteRange(Key(kAsidePrefix, job, 0), Key(kAsidePrefix, job, -1))));
  int64_t records = 0;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  const std::string prefix = JobPrefix(kFactPrefix, job);
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    std::string aside = it->key().ToString();
    aside[0] = kAsidePrefix;
    EGERIA_RETURN_IF_ERROR(ToStatus(batch.Put(aside, it->value())));
    ++records;
  }
  it.reset();
  EGERIA_RETURN_IF_ERROR(ToStatus(batch.DeleteRange(Key(kFactPrefix, job, 0), Key(kFactPrefix, job, -1))));
  EGERIA_RETURN_IF_ERROR(ToStatus(db_->Write(Synced(), &batch)));
  return records;
}

absl::Status Journal::Sync() {
  EGERIA_RETURN_IF_ERROR(EnsureUsable());
  return ToStatus(db_->SyncWAL());
}

std::string Journal::KeyForTest(const JobId& job, int64_t sequence) { return Key(kFactPrefix, job, sequence); }

}  // namespace egeria::controller
