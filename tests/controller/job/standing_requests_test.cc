#include "controller/job/standing_requests.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/facts.h"

namespace egeria::controller {
namespace {

using ::testing::StartsWith;

StandingRequests::Subject Subject(int module, int64_t epoch = 0) {
  StandingRequests::Subject subject;
  subject.monitoring = {module, 10, 4, 3};
  subject.first_module = module;
  subject.epoch = epoch;
  return subject;
}

v1::SnapshotHeader Snapshot(const StandingRequests& requests, int module, int64_t step) {
  v1::SnapshotHeader header;
  header.set_module(module);
  header.set_version(requests.snapshot()->version());
  header.set_step(step);
  return header;
}

v1::SampleHeader Sample(const StandingRequests& requests, int64_t step) {
  v1::SampleHeader header;
  header.set_module(requests.sampling()->module());
  header.set_first_module(requests.sampling()->first_module());
  header.set_request_version(requests.sampling()->version());
  header.set_step(step);
  return header;
}

TEST(StandingRequests, AskForASnapshotBeforeSamples) {
  StandingRequests requests;
  EXPECT_TRUE(requests.Update(Subject(0), kStart));
  EXPECT_FALSE(requests.sampling().has_value());
  ASSERT_TRUE(requests.snapshot().has_value());
  const auto header = Snapshot(requests, 0, 40);
  EXPECT_TRUE(requests.CheckSnapshot(header).ok());
  EXPECT_TRUE(requests.SnapshotTaken(header, kStart));
  EXPECT_FALSE(requests.snapshot().has_value());
  ASSERT_TRUE(requests.sampling().has_value());
  EXPECT_EQ(requests.sampling()->interval_steps(), 10);
  EXPECT_EQ(requests.sampling()->batch_size(), 4);
}

TEST(StandingRequests, AreTheSameWhileTheSubjectIs) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  const int64_t version = requests.snapshot()->version();
  EXPECT_FALSE(requests.Update(Subject(0), kStart + absl::Seconds(9)));
  EXPECT_EQ(requests.snapshot()->version(), version);
}

TEST(StandingRequests, StartAnewWithAFreshHistoryOfTheSameModule) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  const v1::SampleHeader before = Sample(requests, 50);
  EXPECT_TRUE(requests.Update(Subject(0, /*epoch=*/1), kStart));
  EXPECT_FALSE(requests.sampling().has_value());
  EXPECT_THAT(Why(requests.CheckSample(before)), StartsWith("[STALE_REQUEST]"));
  EXPECT_FALSE(requests.IsCurrent(0, before.request_version()));
}

TEST(StandingRequests, TakeSamplesOnlyOnceAndAfterTheReference) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  EXPECT_FALSE(requests.CheckSample(Sample(requests, 40)).ok());
  const auto sample = Sample(requests, 50);
  EXPECT_TRUE(requests.CheckSample(sample).ok());
  requests.SampleTaken(sample);
  EXPECT_THAT(Why(requests.CheckSample(sample)), StartsWith("[STALE_REQUEST]"));
  EXPECT_TRUE(requests.CheckSample(Sample(requests, 60)).ok());
}

TEST(StandingRequests, RefreshTheReferenceAfterAWindowOfReadingsAndSampleOn) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  EXPECT_FALSE(requests.ReadingTaken(kStart));
  EXPECT_FALSE(requests.ReadingTaken(kStart));
  EXPECT_TRUE(requests.ReadingTaken(kStart));
  ASSERT_TRUE(requests.snapshot().has_value());
  EXPECT_TRUE(requests.sampling().has_value());
  requests.SnapshotTaken(Snapshot(requests, 0, 80), kStart);
  EXPECT_FALSE(requests.ReadingTaken(kStart)) << "a new window";
}

TEST(StandingRequests, AskAgainForASnapshotThatIsRefusedOrDoesNotCome) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  const int64_t first = requests.snapshot()->version();
  EXPECT_TRUE(requests.SnapshotRefused(kStart));
  EXPECT_FALSE(requests.snapshot().has_value()) << "not at once";
  EXPECT_FALSE(requests.Tick(kStart + absl::Seconds(1)));
  EXPECT_TRUE(requests.Tick(kStart + StandingRequests::kSnapshotRetry));
  const int64_t second = requests.snapshot()->version();
  EXPECT_GT(second, first);
  EXPECT_TRUE(requests.Tick(kStart + absl::Minutes(10)));
  EXPECT_GT(requests.snapshot()->version(), second);
}

TEST(StandingRequests, AskLessAndLessOftenForASnapshotThatIsAlwaysRefused) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  absl::Time now = kStart;
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(requests.SnapshotRefused(now));
    now += std::min(StandingRequests::kSnapshotRetry * (1 << i), StandingRequests::kLongestSnapshotRetry);
    EXPECT_FALSE(requests.Tick(now - absl::Milliseconds(1)));
    EXPECT_TRUE(requests.Tick(now));
  }
  requests.SnapshotTaken(Snapshot(requests, 0, 10), now);
  for (int i = 0; i < 100 && !requests.snapshot(); ++i) requests.ReadingTaken(now);
  EXPECT_TRUE(requests.SnapshotRefused(now));
  EXPECT_TRUE(requests.Tick(now + StandingRequests::kSnapshotRetry)) << "one that was taken ends the row";
}

TEST(StandingRequests, AskTheNextSamplerAgain) {
  StandingRequests requests;
  EXPECT_FALSE(requests.SamplerChanged(kStart));
  requests.Update(Subject(0), kStart);
  const int64_t version = requests.snapshot()->version();
  EXPECT_TRUE(requests.SamplerChanged(kStart));
  EXPECT_GT(requests.snapshot()->version(), version);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  EXPECT_FALSE(requests.SamplerChanged(kStart)) << "the reference is here";
}

TEST(StandingRequests, AskAnotherSamplerForALocalReferenceOfItsOwn) {
  StandingRequests requests;
  auto subject = Subject(0);
  subject.local = true;
  requests.Update(subject, kStart);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  const v1::SampleHeader before = Sample(requests, 50);
  EXPECT_TRUE(requests.SamplerChanged(kStart));
  EXPECT_FALSE(requests.sampling().has_value());
  EXPECT_THAT(Why(requests.CheckSample(before)), StartsWith("[STALE_REQUEST]"));
  ASSERT_TRUE(requests.snapshot().has_value());
  requests.SnapshotTaken(Snapshot(requests, 0, 60), kStart);
  EXPECT_FALSE(requests.CheckSample(before).ok()) << "of the former reference";
  EXPECT_TRUE(requests.CheckSample(Sample(requests, 70)).ok()) << "the history goes on";
}

TEST(StandingRequests, StartAnewWhenAModuleBecomesLocal) {
  StandingRequests requests;
  auto subject = Subject(0);
  requests.Update(subject, kStart);
  subject.local = true;
  EXPECT_TRUE(requests.Update(subject, kStart));
}

TEST(StandingRequests, WantEverySnapshotOfAPrefixBeforeSampling) {
  StandingRequests requests;
  auto subject = Subject(2);
  subject.first_module = 0;
  requests.Update(subject, kStart);
  EXPECT_EQ(requests.snapshot()->first_module(), 0);
  for (int module : {2, 0, 1}) {
    EXPECT_FALSE(requests.reference_ready());
    const auto header = Snapshot(requests, module, 40);
    requests.SnapshotTaken(header, kStart);
    EXPECT_FALSE(requests.CheckSnapshot(header).ok()) << "once each";
  }
  EXPECT_TRUE(requests.reference_ready());
  EXPECT_EQ(requests.sampling()->first_module(), 0);
}

TEST(StandingRequests, VersionsRiseOverARestartOfTheController) {
  StandingRequests before, after;
  before.Update(Subject(0), kStart);
  for (int i = 0; i < 1'000; ++i) before.SamplerChanged(kStart);
  after.Update(Subject(0), kStart + absl::Seconds(1));
  EXPECT_GT(after.snapshot()->version(), before.snapshot()->version());
}

TEST(StandingRequests, AskForTheReferenceThatTheEngineLost) {
  StandingRequests requests;
  requests.Update(Subject(0), kStart);
  requests.SnapshotTaken(Snapshot(requests, 0, 40), kStart);
  EXPECT_TRUE(requests.ReferenceLost(kStart));
  EXPECT_TRUE(requests.snapshot().has_value());
  EXPECT_FALSE(requests.sampling().has_value());
}

TEST(StandingRequests, WantNothingWithoutASubject) {
  StandingRequests requests;
  EXPECT_FALSE(requests.Update(std::nullopt, kStart));
  requests.Update(Subject(0), kStart);
  EXPECT_TRUE(requests.Update(std::nullopt, kStart));
  EXPECT_FALSE(requests.snapshot().has_value());
  EXPECT_FALSE(requests.Tick(kStart + absl::Hours(1)));
  EXPECT_THAT(Why(requests.CheckSnapshot({})), StartsWith("[STALE_REQUEST]"));
}

}  // namespace
}  // namespace egeria::controller
