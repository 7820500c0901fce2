#include "controller/reference/sample_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace egeria::reference {
namespace {

class SampleQueueTest : public ::testing::Test {
 protected:
  static constexpr bool kOpen = true, kClosed = false;

  absl::Status Push(SampleQueue& queue, const JobId& job, int64_t step, size_t bytes = 10) {
    return queue.Push(QueuedSample{{.step = step}, job}, bytes, &dropped_);
  }
  // The step of the next sample, or -1.
  int64_t Pop(SampleQueue& queue, bool gate_open) {
    const auto next = queue.Pop(gate_open, &dropped_);
    return next.has_value() ? next->sample.step : -1;
  }

  const JobId a_{"a"}, b_{"b"}, c_{"c"};
  std::vector<QueuedSample> dropped_;
};

TEST_F(SampleQueueTest, DropsTheOldestSampleOfAJobThatHasTooMany) {
  SampleQueue queue(2, 1000, true);
  queue.SetJob(a_, {});
  queue.SetJob(b_, {});
  ASSERT_TRUE(Push(queue, b_, 50).ok());
  for (int64_t step : {1, 2, 3}) ASSERT_TRUE(Push(queue, a_, step).ok());
  EXPECT_EQ(queue.dropped_full(), 1);
  ASSERT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(dropped_[0].step, 1);
  EXPECT_EQ(queue.bytes(), 30u);
}

TEST_F(SampleQueueTest, StaysUnderItsBytes) {
  SampleQueue queue(10, 100, true);
  queue.SetJob(a_, {});
  queue.SetJob(b_, {});
  ASSERT_TRUE(Push(queue, a_, 1, 60).ok());
  ASSERT_TRUE(Push(queue, a_, 2, 70).ok());  // at the expense of its own older one
  EXPECT_EQ(queue.bytes(), 70u);
  EXPECT_EQ(Push(queue, a_, 3, 101).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.dropped_full(), 2);
  EXPECT_EQ(Pop(queue, kOpen), 2);  // an impossible sample did not push it out
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST_F(SampleQueueTest, TheJobWithTheMostBytesGivesWay) {
  SampleQueue queue(10, 100, true);
  for (const JobId& job : {a_, b_, c_}) queue.SetJob(job, {});
  for (int64_t step : {1, 2}) ASSERT_TRUE(Push(queue, a_, step, 40).ok());
  ASSERT_TRUE(Push(queue, b_, 11, 15).ok());
  ASSERT_TRUE(Push(queue, c_, 21, 30).ok());
  EXPECT_EQ(dropped_.back().step, 1);
  EXPECT_TRUE(Push(queue, b_, 12, 30).ok()) << "at the expense of its own";
  EXPECT_EQ(dropped_.back().step, 11);
  EXPECT_EQ(queue.bytes(), 100u);
}

TEST_F(SampleQueueTest, ServesTheJobThatHasHadTheLeastTime) {
  SampleQueue queue(10, 1000, true);
  for (const JobId& job : {a_, b_}) queue.SetJob(job, {});
  for (int64_t step : {1, 2}) ASSERT_TRUE(Push(queue, a_, step).ok());
  for (int64_t step : {11, 12, 13}) ASSERT_TRUE(Push(queue, b_, step).ok());
  EXPECT_EQ(Pop(queue, kOpen), 1);
  queue.Charge(a_, absl::Seconds(10));
  EXPECT_EQ(Pop(queue, kOpen), 11);
  queue.Charge(b_, absl::Seconds(4));
  EXPECT_EQ(Pop(queue, kOpen), 12);
  queue.Charge(b_, absl::Seconds(4));
  EXPECT_EQ(Pop(queue, kOpen), 13);
  EXPECT_EQ(Pop(queue, kOpen), 2);
}

TEST_F(SampleQueueTest, SavesUpNoTimeOfAJobWithoutSamples) {
  SampleQueue queue(10, 1000, true);
  for (const JobId& job : {a_, b_, c_}) queue.SetJob(job, {});
  ASSERT_TRUE(Push(queue, a_, 1).ok());
  EXPECT_EQ(Pop(queue, kOpen), 1);
  queue.Charge(a_, absl::Seconds(100));
  ASSERT_TRUE(Push(queue, a_, 2).ok());
  EXPECT_EQ(Pop(queue, kOpen), 2) << "nobody else wants it";
  queue.Charge(a_, absl::Seconds(1));
  ASSERT_TRUE(Push(queue, a_, 3).ok());
  for (int64_t step : {11, 12}) ASSERT_TRUE(Push(queue, b_, step).ok());
  EXPECT_EQ(Pop(queue, kOpen), 11);
  queue.Charge(b_, absl::Seconds(2));
  EXPECT_EQ(Pop(queue, kOpen), 3) << "b has no hundred seconds in hand";
}

TEST_F(SampleQueueTest, KeepsBytesUntilTheSampleIsDestroyed) {
  SampleQueue queue(10, 100, true);
  queue.SetJob(a_, {});
  ASSERT_TRUE(Push(queue, a_, 1, 60).ok());
  {
    const auto next = queue.Pop(kOpen, &dropped_);
    EXPECT_EQ(queue.bytes(), 60u);
  }
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST_F(SampleQueueTest, ServesJobsInTurn) {
  SampleQueue queue(10, 1000, true);
  for (const JobId& job : {a_, b_, c_}) queue.SetJob(job, {});
  for (int64_t step : {1, 2}) ASSERT_TRUE(Push(queue, a_, step).ok());
  for (int64_t step : {11, 12}) ASSERT_TRUE(Push(queue, b_, step).ok());
  ASSERT_TRUE(Push(queue, c_, 21).ok());
  std::vector<int64_t> order;
  for (int i = 0; i < 6; ++i) order.push_back(Pop(queue, kOpen));
  EXPECT_THAT(order, ::testing::ElementsAre(1, 11, 21, 2, 12, -1));
  EXPECT_TRUE(queue.empty());
}

TEST_F(SampleQueueTest, HoldsSamplesWhileTheGateIsClosed) {
  SampleQueue queue(10, 1000, true);
  queue.SetJob(a_, {});
  ASSERT_TRUE(Push(queue, a_, 1).ok());
  EXPECT_EQ(Pop(queue, kClosed), -1);
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(Pop(queue, kOpen), 1);
}

TEST_F(SampleQueueTest, LetsJobsThatShareTheCpuRunAtIdlePriorityWhateverTheGate) {
  SampleQueue queue(10, 1000, true);
  queue.SetJob(a_, {.shares_cpu = true, .deadline_steps = 10});
  ASSERT_TRUE(Push(queue, a_, 5).ok());
  const auto next = queue.Pop(kClosed, &dropped_);
  ASSERT_TRUE(next.has_value());
  EXPECT_FALSE(next->due);
}

TEST_F(SampleQueueTest, WaitsForTheGateOrTheDeadlineWhereIdlePriorityIsNotAvailable) {
  SampleQueue queue(10, 1000, /*idle_priority_available=*/false);
  queue.SetJob(a_, {.shares_cpu = true, .deadline_steps = 10});
  ASSERT_TRUE(Push(queue, a_, 5).ok());
  EXPECT_EQ(Pop(queue, kClosed), -1);
  queue.ReportStep(a_, 15);
  const auto next = queue.Pop(kClosed, &dropped_);
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(next->due);
}

TEST_F(SampleQueueTest, DropsWhatIsTwiceAsOldAsTheDeadline) {
  SampleQueue queue(10, 1000, true);
  queue.SetJob(a_, {.shares_cpu = true, .deadline_steps = 10});
  for (int64_t step : {1, 8}) ASSERT_TRUE(Push(queue, a_, step).ok());
  queue.ReportStep(a_, 20);
  EXPECT_EQ(queue.dropped_late(), 0);
  queue.ReportStep(a_, 21);
  queue.ReportStep(a_, 3);  // never goes back
  EXPECT_EQ(Pop(queue, kClosed), 8);
  EXPECT_EQ(queue.dropped_late(), 1);
  ASSERT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(dropped_[0].step, 1);
}

TEST_F(SampleQueueTest, NeverDropsForAgeWithoutADeadline) {
  SampleQueue queue(10, 1000, true);
  queue.SetJob(a_, {});
  ASSERT_TRUE(Push(queue, a_, 1).ok());
  queue.ReportStep(a_, 1'000'000);
  EXPECT_EQ(Pop(queue, kOpen), 1);
  EXPECT_EQ(queue.dropped_late(), 0);
}

TEST_F(SampleQueueTest, ForgetsAJobThatIsRemoved) {
  SampleQueue queue(10, 1000, true);
  queue.SetJob(a_, {});
  ASSERT_TRUE(Push(queue, a_, 1).ok());
  EXPECT_EQ(queue.RemoveJob(a_).size(), 1u);
  EXPECT_EQ(queue.bytes(), 0u);
  EXPECT_EQ(Push(queue, a_, 2).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Pop(queue, kOpen), -1);
}

}  // namespace
}  // namespace egeria::reference
