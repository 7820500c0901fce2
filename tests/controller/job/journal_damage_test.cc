// The journal and its disk: full, damaged, and gone.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "controller/job/journal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "tests/controller/job/facts.h"
#include "tests/support/job_fixtures.h"
#include "tests/support/small_disk.h"

namespace egeria::controller {
namespace {

namespace fs = std::filesystem;
using ::egeria::testing::SmallDisk;
using ::egeria::testing::TempFolder;
using ::egeria::testing::TestJobId;
using storage::v1::Fact;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kJobs = 3;
constexpr int kRecords = 4;

struct Found {
  std::map<std::string, int64_t> records;  // by job
  std::vector<Journal::Damaged> damaged;

  int64_t all() const {
    int64_t sum = 0;
    for (const auto& [job, count] : records) sum += count;
    return sum;
  }
  int64_t lost() const {
    int64_t sum = 0;
    for (const Journal::Damaged& job : damaged) sum += job.lost;
    return sum;
  }
};

class JournalDamageTest : public ::testing::Test {
 protected:
  std::unique_ptr<Journal> Open(Found* found = nullptr) {
    auto journal = Journal::Open(path(), {.retry = absl::ZeroDuration()});
    EXPECT_TRUE(journal.ok()) << journal.status();
    if (!journal.ok()) return nullptr;
    Found mine;
    auto damaged = (*journal)->Replay([&](const JobId& job, int64_t, const Fact&) {
      ++mine.records[job.text()];
      return absl::OkStatus();
    });
    EXPECT_TRUE(damaged.ok()) << damaged.status();
    if (damaged.ok()) mine.damaged = *std::move(damaged);
    if (found != nullptr) *found = std::move(mine);
    return *std::move(journal);
  }
  absl::Status Append(Journal& journal, int job, int64_t sequence, bool sync = true) {
    return journal.Append(JobId(TestJobId(job)), sequence, {ReadingFact(sequence, 0, 0.5)}, sync);
  }
  // Every job gets its records, in turn.
  void Populate(bool sync = true) {
    auto journal = Open();
    for (int64_t sequence = 1; sequence <= kRecords; ++sequence) {
      for (int job = 1; job <= kJobs; ++job) ASSERT_TRUE(Append(*journal, job, sequence, sync).ok());
    }
  }
  fs::path FileOf(const std::string& extension) {
    fs::path largest;
    for (const auto& file : fs::directory_iterator(path())) {
      const bool fits = file.path().extension() == extension || file.path().filename().string().starts_with(extension);
      if (fits && (largest.empty() || file.file_size() > fs::file_size(largest))) largest = file.path();
    }
    return largest;
  }
  void Flip(const fs::path& file, size_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
  }
  // As after a start of the machine, when only what was synced can be relied on.
  void RestartMachine() { Flip(path() + ".marks", 20); }
  std::string path() const { return folder_ / "journal"; }

  TempFolder folder_;
};

TEST_F(JournalDamageTest, AFlippedBitCostsOneRecordWhichIsNamedAndTheLogIsKept) {
  Populate();
  const size_t size = fs::file_size(FileOf(".log"));
  const fs::path original = folder_ / "original", marks = folder_ / "original.marks";
  fs::copy(path(), original);
  fs::copy(path() + ".marks", marks);
  for (size_t at = 0; at < size; at += 23) {
    for (const auto& file : fs::directory_iterator(folder_.path())) {
      if (file.path() != original && file.path() != marks) fs::remove_all(file.path());
    }
    fs::copy(original, path());
    fs::copy(marks, path() + ".marks");
    Flip(FileOf(".log"), at);
    Found found;
    Open(&found);
    int64_t aside = 0;
    for (const Journal::Damaged& job : found.damaged) aside += job.aside;
    if (found.all() + aside == kJobs * kRecords) continue;  // it was the version's record
    ASSERT_EQ(found.damaged.size(), 1u) << at;
    EXPECT_EQ(found.lost(), 1) << at;
    EXPECT_EQ(found.all() + aside, kJobs * kRecords - 1) << "everything else is there, damaged at " << at;
    EXPECT_EQ(found.damaged[0].kept, kRecords - 1 - aside) << at;
    EXPECT_TRUE(fs::exists(path() + ".damaged-1")) << at;
    Open(&found);
    EXPECT_TRUE(found.damaged.empty()) << "it is said once";
  }
}

TEST_F(JournalDamageTest, WhatACrashOfTheMachineTakesIsNoDamage) {
  Populate(/*sync=*/false);
  {
    auto journal = Open();
    ASSERT_TRUE(Append(*journal, 1, kRecords + 1, /*sync=*/true).ok());
    ASSERT_TRUE(Append(*journal, 2, kRecords + 1, /*sync=*/false).ok());
    fs::copy(path(), folder_ / "crashed");  // it is not closed, which would sync
    fs::copy(path() + ".marks", folder_ / "crashed.marks");
  }
  fs::remove_all(path());
  fs::rename(folder_ / "crashed", path());
  fs::rename(folder_ / "crashed.marks", path() + ".marks");
  const fs::path log = FileOf(".log");
  fs::resize_file(log, fs::file_size(log) - 7);
  fs::copy(path(), folder_ / "again");
  fs::copy(path() + ".marks", folder_ / "again.marks");
  RestartMachine();
  Found found;
  Open(&found);
  EXPECT_EQ(found.all(), kJobs * kRecords + 1);
  EXPECT_TRUE(found.damaged.empty());

  // The same tear without a crash of the machine is a loss.
  fs::remove_all(path());
  fs::rename(folder_ / "again", path());
  fs::rename(folder_ / "again.marks", path() + ".marks");
  Open(&found);
  ASSERT_EQ(found.damaged.size(), 1u);
  EXPECT_EQ(found.damaged[0].job.text(), TestJobId(2));
  EXPECT_EQ(found.damaged[0].lost, 1);
}

TEST_F(JournalDamageTest, HistoryThatWasSyncedAndIsGoneIsNamed) {
  Populate();
  RestartMachine();
  fs::remove(FileOf(".log"));
  Found found;
  Open(&found);
  ASSERT_EQ(found.damaged.size(), static_cast<size_t>(kJobs));
  EXPECT_EQ(found.lost(), kJobs * kRecords);
  EXPECT_EQ(found.damaged[0].kept, 0);
  fs::remove_all(path());
  auto journal = Open(&found);
  EXPECT_TRUE(found.damaged.empty()) << "it was said, and nothing has come since";
  ASSERT_TRUE(Append(*journal, 1, 1).ok());
  ASSERT_TRUE(Append(*journal, 2, 1).ok());
  ASSERT_TRUE(journal->Remove(JobId(TestJobId(2))).ok());
  journal.reset();
  fs::remove_all(path());
  Open(&found);
  ASSERT_EQ(found.damaged.size(), 1u) << "nobody misses a job that was removed";
  EXPECT_EQ(found.damaged[0].job.text(), TestJobId(1));
}

TEST_F(JournalDamageTest, DamagedTablesAreOneSentenceThatSaysWhatToDo) {
  Populate();
  for (int i = 0; i < 2; ++i) Open();  // the records go from the log to a table
  const fs::path original = folder_ / "original";
  fs::copy(path(), original);
  const std::vector<std::pair<std::string, std::function<void()>>> harms = {
      {"flipped table", [&] { Flip(FileOf(".sst"), 100); }},
      {"lost table", [&] { fs::remove(FileOf(".sst")); }},
      {"short table", [&] { fs::resize_file(FileOf(".sst"), fs::file_size(FileOf(".sst")) / 2); }},
      {"flipped manifest", [&] { Flip(FileOf("MANIFEST"), 40); }},
      {"short manifest", [&] { fs::resize_file(FileOf("MANIFEST"), 20); }},
      {"empty CURRENT", [&] { fs::resize_file(path() + "/CURRENT", 0); }},
      {"lost CURRENT", [&] { fs::remove(path() + "/CURRENT"); }},
      {"lost CURRENT and logs",
       [&] {
         fs::remove(path() + "/CURRENT");
         while (!FileOf(".log").empty()) fs::remove(FileOf(".log"));
       }},
  };
  for (const auto& [what, harm] : harms) {
    fs::remove_all(path());
    fs::copy(original, path());
    harm();
    auto journal = Journal::Open(path());
    absl::Status status = journal.status();
    if (journal.ok()) status = (*journal)->Replay([](auto&&...) { return absl::OkStatus(); }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("[JOURNAL_DAMAGED]"), HasSubstr("mv '" + path() + "'"), HasSubstr("start again")))
        << what;
  }
}

TEST_F(JournalDamageTest, AFullDiskLetsRecordsWaitInMemoryUntilThereIsRoom) {
  SmallDisk disk;
  fs::create_directory(folder_ / "disk");
  if (const std::string why = disk.Mount(folder_ / "disk"); !why.empty()) {
    GTEST_SKIP() << "needs to mount a small file system, which is not allowed here: " << why;
  }
  const std::string path = folder_ / "disk/journal";
  const auto count = [](Journal& journal) {
    std::map<std::string, int64_t> records;
    const auto damaged = journal.Replay([&](const JobId& job, int64_t sequence, const Fact&) {
      records[job.text()] = sequence;
      return absl::OkStatus();
    });
    EXPECT_TRUE(damaged.ok() && damaged->empty());
    return records;
  };
  int64_t sequence = 0;
  {
    auto journal = Journal::Open(path, {.retry = absl::ZeroDuration()});
    ASSERT_TRUE(journal.ok()) << journal.status();
    count(**journal);
    ASSERT_TRUE(Append(**journal, 1, ++sequence).ok());
    for (int round = 0; round < 3; ++round) {
      disk.Fill();
      // More than the log's last block and the database's buffer hold.
      for (int i = 0; i < 3'000; ++i) {
        const Fact fact = ReadingFact(++sequence, 0, 0.5);
        ASSERT_TRUE((*journal)->Append(JobId(TestJobId(1)), sequence, {fact}, i % 50 == 0).ok());
        (*journal)->Tend();
      }
      EXPECT_GT((*journal)->backlog_bytes(), 0u);
      EXPECT_THAT(std::string((*journal)->health().message()), HasSubstr("is full"));
      disk.Free();
      (*journal)->Tend();
      EXPECT_TRUE((*journal)->health().ok()) << (*journal)->health();
      EXPECT_EQ((*journal)->backlog_bytes(), 0u);
      ASSERT_TRUE(Append(**journal, 1, ++sequence).ok());
    }
    disk.Fill();
    ASSERT_TRUE(Append(**journal, 1, ++sequence).ok());
    disk.Free();  // and it is closed at once
  }
  auto again = Journal::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(count(**again)[TestJobId(1)], sequence);
  again->reset();
  disk.Fill();
  const absl::Status full = Journal::Open(path).status();
  EXPECT_THAT(std::string(full.message()), AllOf(StartsWith("[JOURNAL] the disk of "), HasSubstr("make room")));
}

TEST_F(JournalDamageTest, ItsTimeGoesOnWhereItWasWhateverTheClockSays) {
  absl::Time kept;
  {
    auto journal = Open();
    EXPECT_LT(absl::AbsDuration(journal->Now() - absl::Now()), absl::Minutes(1)) << "a new one begins with the clock's";
    journal->Tend();
  }
  {
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), path(), &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    kept = absl::FromUnixSeconds(1'000'000'000);  // the clock has leapt since, by decades
    ASSERT_TRUE(db->Put({}, "c", absl::StrCat(absl::ToUnixNanos(kept))).ok());
  }
  for (int restart = 0; restart < 3; ++restart) {
    auto journal = Open();
    const absl::Time now = journal->Now();
    EXPECT_GT(now, kept);
    EXPECT_LT(now, kept + absl::Minutes(1));
    journal->Tend();
    kept = now;
  }
}

TEST_F(JournalDamageTest, AFolderThatVanishesIsMadeAnewWithAllThatItHeld) {
  Populate();
  auto journal = Open();
  ASSERT_TRUE(Append(*journal, 1, kRecords + 1, /*sync=*/false).ok());
  fs::remove_all(path());
  fs::remove(path() + ".marks");
  journal->Tend();
  EXPECT_TRUE(journal->health().ok()) << journal->health();
  EXPECT_EQ(journal->errors(), 1);
  ASSERT_TRUE(Append(*journal, 2, kRecords + 1).ok());
  fs::rename(path(), folder_ / "elsewhere");
  ASSERT_TRUE(Append(*journal, 3, kRecords + 1).ok()) << "it is noticed at a write, too";
  journal.reset();
  Found found;
  Open(&found);
  EXPECT_EQ(found.all(), kJobs * (kRecords + 1));
  EXPECT_TRUE(found.damaged.empty());
}

}  // namespace
}  // namespace egeria::controller
