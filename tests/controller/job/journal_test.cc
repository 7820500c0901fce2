#include "controller/job/journal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "tests/controller/job/facts.h"
#include "tests/support/failing_env.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::TempFolder;
using ::egeria::testing::TestJobId;
using storage::v1::Fact;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Journal> OpenJournal(const TempFolder& folder) {
  auto journal = Journal::Open(folder / "journal");
  EXPECT_TRUE(journal.ok()) << journal.status();
  return *std::move(journal);
}

std::vector<Fact> Readings(int64_t first_step, int count) {
  std::vector<Fact> facts;
  for (int i = 0; i < count; ++i) facts.push_back(ReadingFact(first_step + i, 0, 0.5));
  return facts;
}

// The steps that each job's records hold.
std::map<std::string, std::vector<int64_t>> ReplaySteps(Journal& journal,
                                                        std::vector<Journal::Damaged>* damaged = nullptr) {
  std::map<std::string, std::vector<int64_t>> steps;
  auto replayed = journal.Replay([&](const JobId& job, int64_t, const Fact& fact) {
    steps[job.text()].push_back(fact.observed().step());
    return absl::OkStatus();
  });
  EXPECT_TRUE(replayed.ok()) << replayed.status();
  if (damaged != nullptr) *damaged = *replayed;
  return steps;
}

// Changes the database behind the journal's back.
void Damage(const TempFolder& folder, const std::function<void(rocksdb::DB&)>& damage) {
  rocksdb::DB* opened = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), folder / "journal", &opened).ok());
  std::unique_ptr<rocksdb::DB> db(opened);
  damage(*db);
}

TEST(Journal, GivesBackEachJobsFactsInOrder) {
  TempFolder folder;
  {
    auto journal = OpenJournal(folder);
    ASSERT_TRUE(journal->Append(JobId(TestJobId(2)), 1, Readings(10, 300), false).ok());
    ASSERT_TRUE(journal->Append(JobId(TestJobId(1)), 1, Readings(1, 2), true).ok());
    ASSERT_TRUE(journal->Append(JobId(TestJobId(1)), 3, Readings(3, 1), false).ok());
  }
  auto journal = OpenJournal(folder);
  auto steps = ReplaySteps(*journal);
  EXPECT_THAT(steps[TestJobId(1)], ElementsAre(1, 2, 3));
  ASSERT_EQ(steps[TestJobId(2)].size(), 300u);
  EXPECT_EQ(steps[TestJobId(2)].back(), 309);
}

TEST(Journal, ForgetsARemovedJobAndNoOther) {
  TempFolder folder;
  auto journal = OpenJournal(folder);
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(journal->Append(JobId(TestJobId(i)), 1, Readings(i, 2), false).ok());
  ASSERT_TRUE(journal->Remove(JobId(TestJobId(2))).ok());
  auto steps = ReplaySteps(*journal);
  EXPECT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps.count(TestJobId(2)), 0u);
}

TEST(Journal, SetsAsideWhatFollowsARecordThatCannotBeParsed) {
  TempFolder folder;
  {
    auto journal = OpenJournal(folder);
    for (int i = 1; i <= 3; ++i) ASSERT_TRUE(journal->Append(JobId(TestJobId(i)), 1, Readings(i, 3), false).ok());
  }
  Damage(folder, [](rocksdb::DB& db) {
    ASSERT_TRUE(db.Put({}, Journal::KeyForTest(JobId(TestJobId(2)), 2), "\xff\xff not a fact").ok());
  });
  auto journal = OpenJournal(folder);
  std::vector<Journal::Damaged> damaged;
  auto steps = ReplaySteps(*journal, &damaged);
  EXPECT_THAT(steps[TestJobId(1)], ElementsAre(1, 2, 3));
  EXPECT_THAT(steps[TestJobId(3)], ElementsAre(3, 4, 5));
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].job.text(), TestJobId(2));
  EXPECT_EQ(damaged[0].kept, 1);
  EXPECT_EQ(damaged[0].aside, 2);
  EXPECT_THAT(damaged[0].reason, HasSubstr("record 2 cannot be parsed"));
  // The job goes on from there.
  ASSERT_TRUE(journal->Append(JobId(TestJobId(2)), 2, Readings(7, 1), false).ok());
  EXPECT_THAT(ReplaySteps(*journal, &damaged)[TestJobId(2)], ElementsAre(2, 7));
  EXPECT_TRUE(damaged.empty());
}

TEST(Journal, SetsAsideWhatFollowsAMissingRecord) {
  TempFolder folder;
  {
    auto journal = OpenJournal(folder);
    for (int i = 1; i <= 2; ++i) ASSERT_TRUE(journal->Append(JobId(TestJobId(i)), 1, Readings(i, 3), false).ok());
  }
  Damage(folder, [](rocksdb::DB& db) { ASSERT_TRUE(db.Delete({}, Journal::KeyForTest(JobId(TestJobId(1)), 2)).ok()); });
  auto journal = OpenJournal(folder);
  std::vector<Journal::Damaged> damaged;
  EXPECT_EQ(ReplaySteps(*journal, &damaged)[TestJobId(2)].size(), 3u);
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_THAT(damaged[0].reason, HasSubstr("record 2 is missing"));
}

TEST(Journal, SetsAsideAJobWhoseFactsItsReaderRefuses) {
  TempFolder folder;
  auto journal = OpenJournal(folder);
  for (int i = 1; i <= 2; ++i) ASSERT_TRUE(journal->Append(JobId(TestJobId(i)), 1, Readings(i, 3), false).ok());
  auto damaged = journal->Replay([](const JobId& job, int64_t sequence, const Fact&) {
    return job.text() == TestJobId(1) && sequence == 2 ? absl::InternalError("impossible") : absl::OkStatus();
  });
  ASSERT_TRUE(damaged.ok());
  ASSERT_EQ(damaged->size(), 1u);
  EXPECT_THAT((*damaged)[0].reason, HasSubstr("record 2: impossible"));
}

TEST(Journal, IsOneProcessesAlone) {
  TempFolder folder;
  auto journal = OpenJournal(folder);
  auto second = Journal::Open(folder / "journal");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), StartsWith("[STATE_DIR_IN_USE]"));
}

TEST(Journal, RefusesAFormatThatItDoesNotKnow) {
  TempFolder folder;
  OpenJournal(folder);
  Damage(folder, [](rocksdb::DB& db) { ASSERT_TRUE(db.Put({}, "v", "egeria-journal 99").ok()); });
  EXPECT_THAT(std::string(Journal::Open(folder / "journal").status().message()), StartsWith("[JOURNAL_VERSION]"));
}

TEST(Journal, SaysWhyAFolderCannotBeMade) {
  EXPECT_THAT(std::string(Journal::Open("/proc/nowhere/journal").status().message()), StartsWith("[JOURNAL]"));
}

TEST(Journal, GoesOnWhenTheDiskThatFailedWorksAgain) {
  TempFolder folder;
  ::egeria::testing::FailingEnv disk;
  {
    auto journal =
        Journal::Open(folder / "journal", {.env = &disk, .retry = absl::ZeroDuration(), .max_backlog_bytes = 10'000});
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_TRUE((*journal)->Append(JobId(TestJobId(1)), 1, Readings(1, 2), true).ok());
    ASSERT_TRUE((*journal)->Append(JobId(TestJobId(2)), 1, Readings(1, 2), true).ok());
    disk.failing = true;
    for (int i = 0; i < 3; ++i) {
      const absl::Status waits = (*journal)->Append(JobId(TestJobId(1)), 3 + i, Readings(3 + i, 1), true);
      EXPECT_TRUE(waits.ok()) << waits;
    }
    const absl::Status refused = (*journal)->Append(JobId(TestJobId(1)), 6, Readings(30, 5'000), true);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << "more than may wait";
    EXPECT_THAT(std::string(refused.message()), StartsWith("[JOURNAL]"));
    EXPECT_FALSE((*journal)->health().ok());
    disk.failing = false;
    ASSERT_TRUE((*journal)->Append(JobId(TestJobId(2)), 3, Readings(3, 1), true).ok());
    EXPECT_TRUE((*journal)->health().ok()) << (*journal)->health();
  }
  auto journal = OpenJournal(folder);
  auto steps = ReplaySteps(*journal);
  EXPECT_THAT(steps[TestJobId(1)], ElementsAre(1, 2, 3, 4, 5)) << "nothing of the refused append";
  EXPECT_THAT(steps[TestJobId(2)], ElementsAre(1, 2, 3));
}

// An entry is there after kill -9 once Append() has returned, synced or not.
TEST(Journal, KeepsWhatItHasAppendedWhenItsProcessIsKilled) {
  TempFolder folder;
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto journal = Journal::Open(folder / "journal");
    for (int64_t i = 1; journal.ok(); ++i) {
      if (!(*journal)->Append(JobId(TestJobId(1)), i, Readings(i, 1), i % 7 == 0).ok()) _exit(3);
      if (write(pipes[1], &i, sizeof(i)) != sizeof(i)) _exit(4);
    }
    _exit(5);
  }
  close(pipes[1]);
  int64_t appended = 0, last = 0;
  while (last < 200 && read(pipes[0], &last, sizeof(last)) == sizeof(last)) appended = last;
  kill(child, SIGKILL);
  while (read(pipes[0], &last, sizeof(last)) == sizeof(last)) appended = last;
  close(pipes[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
  ASSERT_GE(appended, 200);
  auto journal = OpenJournal(folder);
  std::vector<Journal::Damaged> damaged;
  const auto steps = ReplaySteps(*journal, &damaged)[TestJobId(1)];
  EXPECT_TRUE(damaged.empty());
  EXPECT_GE(static_cast<int64_t>(steps.size()), appended);
}

}  // namespace
}  // namespace egeria::controller
