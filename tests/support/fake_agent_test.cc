#include "tests/support/fake_agent.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::testing {
namespace {

worker::Plan PlanNumber(int64_t id, int prefix) { return {PlanId(id), Generation(0), prefix, "test"}; }

TEST(FakeAgent, AdvertisesTheContiguousWatermark) {
  FakeLine line(Generation(0), PlanId(0), 5);
  FakeAgent agent(&line);
  EXPECT_TRUE(line.Deliver(PlanNumber(2, 2)).ok());
  EXPECT_EQ(agent.watermark(), PlanId(0));
  EXPECT_TRUE(line.Deliver(PlanNumber(1, 1)).ok());
  EXPECT_EQ(agent.watermark(), PlanId(2));
  ASSERT_TRUE(agent.plan(PlanId(2)).has_value());
  EXPECT_EQ(agent.plan(PlanId(2))->frozen_prefix, 2);
}

TEST(FakeAgent, RemembersReadings) {
  FakeLine line(Generation(0), PlanId(0), 2);
  FakeAgent agent(&line);
  EXPECT_TRUE(agent.Offer(worker::Reading{ModuleIndex(0), 3, 1, 0.5}));
  line.TakeUploads(false);
  EXPECT_FALSE(agent.Offer(worker::Reading{ModuleIndex(0), 4, 1, 0.5}));
  ASSERT_EQ(line.readings().size(), 1u);
  EXPECT_EQ(line.readings()[0].step, 3);
}

TEST(FakeAgent, CountsWhatItRefuses) {
  FakeLine line(Generation(0), PlanId(0), 5);
  FakeAgent agent(&line);
  EXPECT_TRUE(agent.Offer(worker::Sample{}));
  line.TakeUploads(false);
  EXPECT_FALSE(agent.Offer(worker::Sample{}));
  EXPECT_FALSE(agent.Offer(worker::Snapshot{}));
  EXPECT_EQ(agent.counters().samples_sent, 1);
  EXPECT_EQ(line.refused(), 2);
}

TEST(FakeAgent, WantsASnapshotUntilEveryModuleIsQueuedAndAgainWhenItIsLost) {
  FakeLine line(Generation(0), PlanId(0), 5);
  FakeAgent agent(&line);
  line.Want(worker::SnapshotRequest{ModuleIndex(1), ModuleIndex(0), 1});
  agent.Offer(worker::Snapshot{.module = ModuleIndex(0)});
  EXPECT_TRUE(agent.snapshot().has_value());
  agent.Offer(worker::Snapshot{.module = ModuleIndex(1)});
  EXPECT_FALSE(agent.snapshot().has_value());
  line.LoseSnapshots();
  EXPECT_TRUE(agent.snapshot().has_value());
}

TEST(FakeAgent, RemembersTheFirstStop) {
  FakeLine line(Generation(0), PlanId(0), 5);
  FakeAgent agent(&line);
  EXPECT_EQ(line.stopped(), std::nullopt);
  agent.Stop(true);
  agent.Stop(false);
  EXPECT_EQ(line.stopped(), true);
}

}  // namespace
}  // namespace egeria::testing
