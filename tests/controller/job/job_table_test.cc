#include "controller/job/job_table.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/facts.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::TestJobId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobTableTest : public ::testing::Test {
 protected:
  Job& Add(int number, absl::Time last_activity, bool finished = false) {
    auto job = std::make_unique<Job>(JobId(TestJobId(number)));
    EXPECT_TRUE(job->state.Apply(RegisteredFact(number)).ok());
    storage::v1::Fact end;
    end.mutable_finished();
    if (finished) {
      EXPECT_TRUE(job->state.Apply(end).ok());
    }
    job->live.last_activity = last_activity;
    return table_.Add(std::move(job));
  }

  JobManagerOptions options_;
  JobTable table_{&options_};
  Effects effects_{nullptr};
  const absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
};

TEST_F(JobTableTest, FindsASessionUntilItsRankHasAnother) {
  Job& job = Add(1, now_);
  Rank& rank = job.live.ranks.Join(1, 1);
  const SessionId first = table_.BeginSession(job, 1, rank);
  ASSERT_TRUE(table_.Find(first).has_value());
  EXPECT_EQ(table_.Find(first)->job, &job);
  EXPECT_EQ(table_.Find(first)->number, 1);
  EXPECT_TRUE(table_.Find(first)->samples());
  const SessionId second = table_.BeginSession(job, 1, rank);
  EXPECT_GT(second, first);
  EXPECT_FALSE(table_.Find(first).has_value());
  table_.Drop(job.id, absl::NotFoundError("over"), effects_);
  EXPECT_FALSE(table_.Find(second).has_value());
  EXPECT_FALSE(table_.Find(SessionId()).has_value());
}

TEST_F(JobTableTest, OnlyUnfinishedJobsTakeRoom) {
  options_.max_jobs = 1;
  std::optional<JobId> makes_room;
  Add(1, now_, /*finished=*/true);
  EXPECT_TRUE(table_.CheckRoom("", &makes_room).ok());
  Add(2, now_).live.last_heartbeat = now_;
  EXPECT_EQ(table_.CheckRoom("", &makes_room).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(makes_room.has_value());
}

TEST_F(JobTableTest, TheOldestJobThatNeverBeganMakesRoom) {
  options_.max_jobs = 3;
  options_.clock = [this] { return now_; };
  std::optional<JobId> makes_room;
  Add(1, now_ - absl::Hours(1)).live.last_heartbeat = now_ - absl::Hours(1);
  Add(2, now_ - absl::Seconds(9));
  Add(3, now_ - absl::Seconds(5));
  EXPECT_EQ(table_.CheckRoom("", &makes_room).code(), absl::StatusCode::kResourceExhausted) << "they may yet begin";
  table_.Find(JobId(TestJobId(3)))->live.last_activity = now_ - absl::Seconds(11);
  EXPECT_TRUE(table_.CheckRoom("", &makes_room).ok());
  EXPECT_EQ(makes_room, JobId(TestJobId(3)));
}

TEST_F(JobTableTest, NobodyHasMoreThanThreeQuartersOfThePlaces) {
  options_.max_jobs = 4;
  options_.clock = [this] { return now_; };
  std::optional<JobId> makes_room;
  for (int number = 1; number <= 3; ++number) Add(number, now_).live.last_heartbeat = now_;
  EXPECT_THAT(std::string(table_.CheckRoom("", &makes_room).message()), HasSubstr("3 of one owner"));
  EXPECT_TRUE(table_.CheckRoom("another", &makes_room).ok());
  EXPECT_FALSE(makes_room.has_value());
}

TEST_F(JobTableTest, AJobThatNeverBeganExpiresSoon) {
  Add(1, now_ - options_.unheard_retention - absl::Seconds(1));
  Add(2, now_ - options_.unheard_retention - absl::Seconds(1)).live.last_heartbeat = now_ - absl::Hours(1);
  Add(3, now_ - options_.unheard_retention);
  EXPECT_THAT(table_.FindLeftovers(now_).expired, ElementsAre(JobId(TestJobId(1))));
}

TEST_F(JobTableTest, JobsExpireAfterTheirSilenceAndNeverWithAStream) {
  Add(1, now_ - options_.finished_retention - absl::Seconds(1), /*finished=*/true);
  Add(2, now_ - options_.silent_retention, /*finished=*/true);
  Add(3, now_ - options_.silent_retention - absl::Seconds(1)).live.last_heartbeat = now_;
  Job& streaming = Add(4, now_ - options_.silent_retention - absl::Seconds(1));
  table_.BeginSession(streaming, 0, streaming.live.ranks.Join(0, 1));
  EXPECT_THAT(table_.FindLeftovers(now_).expired, ElementsAre(JobId(TestJobId(1)), JobId(TestJobId(3))));
}

TEST_F(JobTableTest, TheOldestFinishedJobsBeyondTheLimitExpire) {
  options_.max_jobs = 1;
  Add(1, now_ - absl::Hours(1), /*finished=*/true);
  Add(2, now_ - absl::Hours(2), /*finished=*/true);
  EXPECT_THAT(table_.FindLeftovers(now_).expired, ElementsAre(JobId(TestJobId(2))));
}

TEST_F(JobTableTest, AJobIsIdleOnlyWhileTheEngineHasItsGraphs) {
  Job& job = Add(1, now_ - options_.idle_reference - absl::Seconds(1));
  job.live.last_heartbeat = now_ - absl::Hours(1);
  EXPECT_THAT(table_.FindLeftovers(now_).idle, IsEmpty());
  job.live.graphs.known = true;
  EXPECT_THAT(table_.FindLeftovers(now_).idle, ElementsAre(&job));
}

}  // namespace
}  // namespace egeria::controller
