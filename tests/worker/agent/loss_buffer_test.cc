#include "worker/agent/loss_buffer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using ::testing::ElementsAre;

TEST(LossBuffer, HandsOutEachLossOnceInRunsOfConsecutiveSteps) {
  LossBuffer losses;
  for (int64_t step : {3, 4, 5, 9, 10}) losses.Add(step, static_cast<float>(step));
  LossRun run = losses.Next();
  EXPECT_EQ(run.first_step, 3);
  EXPECT_THAT(run.values, ElementsAre(3, 4, 5));
  EXPECT_TRUE(losses.HasNext());
  run = losses.Next();
  EXPECT_EQ(run.first_step, 9);
  EXPECT_THAT(run.values, ElementsAre(9, 10));
  EXPECT_FALSE(losses.HasNext());
  EXPECT_TRUE(losses.Next().values.empty());
  losses.Add(11, 11);
  EXPECT_THAT(losses.Next().values, ElementsAre(11));
}

TEST(LossBuffer, HandsOutAgainWhatWasNotForgotten) {
  LossBuffer losses;
  for (int64_t step = 1; step <= 5; ++step) losses.Add(step, static_cast<float>(step));
  losses.Next();
  losses.Forget(3);
  EXPECT_FALSE(losses.HasNext());
  losses.Rewind();
  const LossRun run = losses.Next();
  EXPECT_EQ(run.first_step, 4);
  EXPECT_THAT(run.values, ElementsAre(4, 5));
}

TEST(LossBuffer, PassesOverStepsThatDoNotRise) {
  LossBuffer losses;
  losses.Add(5, 5);
  losses.Add(5, 6);
  losses.Add(4, 4);
  EXPECT_THAT(losses.Next().values, ElementsAre(5));
  EXPECT_FALSE(losses.HasNext());
}

TEST(LossBuffer, DropsAndCountsTheOldestWhenFull) {
  LossBuffer losses;
  const int64_t kMore = 10;
  for (int64_t step = 1; step <= static_cast<int64_t>(LossBuffer::kCapacity) + kMore; ++step) losses.Add(step, 0);
  EXPECT_EQ(losses.dropped(), kMore);
  const LossRun run = losses.Next();
  EXPECT_EQ(run.first_step, kMore + 1);
  EXPECT_EQ(run.values.size(), LossBuffer::kCapacity);
}

TEST(LossBuffer, KeepsItsPlaceWhenHandedOutLossesAreDropped) {
  LossBuffer losses;
  for (size_t step = 1; step <= LossBuffer::kCapacity; ++step) losses.Add(static_cast<int64_t>(step), 0);
  losses.Next();
  losses.Add(static_cast<int64_t>(LossBuffer::kCapacity) + 1, 7);
  EXPECT_THAT(losses.Next().values, ElementsAre(7));
}

}  // namespace
}  // namespace egeria::worker
