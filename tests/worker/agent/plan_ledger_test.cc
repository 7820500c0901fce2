#include "worker/agent/plan_ledger.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "common/rpc/grpc_status.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

constexpr Generation kGeneration(3);
constexpr int kModules = 5;

Plan Freeze(int64_t id, int prefix = 1) { return Plan{PlanId(id), kGeneration, prefix, "because"}; }

std::string Refusal(const absl::Status& status) { return std::string(rpc::ErrorName(status)); }

TEST(PlanLedger, RaisesTheWatermarkWithEveryPlanInOrder) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  EXPECT_EQ(ledger.watermark(), PlanId(0));
  for (int64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(ledger.Deliver(Freeze(id)).ok());
    EXPECT_EQ(ledger.watermark(), PlanId(id));
  }
}

TEST(PlanLedger, FindsWhatItWasGiven) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  ASSERT_TRUE(ledger.Deliver(Freeze(1, 4)).ok());
  ASSERT_TRUE(ledger.Find(PlanId(1)).has_value());
  EXPECT_EQ(ledger.Find(PlanId(1))->frozen_prefix, 4);
  EXPECT_EQ(ledger.Find(PlanId(1))->reason, "because");
  EXPECT_FALSE(ledger.Find(PlanId(2)).has_value());
}

TEST(PlanLedger, TakesReorderedPlansButWaitsForTheGapToClose) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  ASSERT_TRUE(ledger.Deliver(Freeze(3)).ok());
  ASSERT_TRUE(ledger.Deliver(Freeze(2)).ok());
  EXPECT_EQ(ledger.watermark(), PlanId(0));
  EXPECT_TRUE(ledger.Find(PlanId(3)).has_value());
  ASSERT_TRUE(ledger.Deliver(Freeze(1)).ok());
  EXPECT_EQ(ledger.watermark(), PlanId(3));
}

TEST(PlanLedger, RefusesADuplicate) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  ASSERT_TRUE(ledger.Deliver(Freeze(1)).ok());
  ASSERT_TRUE(ledger.Deliver(Freeze(3)).ok());
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(1))), "DUPLICATE_PLAN");
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(3))), "DUPLICATE_PLAN");
  EXPECT_EQ(ledger.watermark(), PlanId(1));
}

TEST(PlanLedger, RefusesAPlanThatIsLate) {
  PlanLedger ledger(kGeneration, PlanId(7), kModules);
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(6))), "DUPLICATE_PLAN");
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(7))), "DUPLICATE_PLAN");
  EXPECT_FALSE(ledger.Find(PlanId(6)).has_value());
  ASSERT_TRUE(ledger.Deliver(Freeze(8)).ok());
  EXPECT_EQ(ledger.watermark(), PlanId(8));
}

TEST(PlanLedger, RefusesAnotherGenerationOlderOrNewer) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  for (int64_t generation : {2, 4}) {
    Plan plan = Freeze(1);
    plan.generation = Generation(generation);
    EXPECT_EQ(Refusal(ledger.Deliver(plan)), "STALE_GENERATION");
  }
  EXPECT_EQ(ledger.watermark(), PlanId(0));
  EXPECT_FALSE(ledger.Find(PlanId(1)).has_value());
}

TEST(PlanLedger, RefusesAPlanThatContradictsAnEarlierOne) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  ASSERT_TRUE(ledger.Deliver(Freeze(1, 1)).ok());
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(1, 2))), "PLAN_CONFLICT");
  EXPECT_EQ(ledger.Find(PlanId(1))->frozen_prefix, 1);
}

TEST(PlanLedger, RefusesAPlanTooFarAhead) {
  PlanLedger ledger(kGeneration, PlanId(10), kModules);
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(1035))), "PLAN_TOO_FAR");
  EXPECT_TRUE(ledger.Deliver(Freeze(1034)).ok());
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(INT64_MAX))), "PLAN_TOO_FAR");
}

TEST(PlanLedger, RefusesAPrefixThatIsNegativeOrFreezesTheLastModule) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  for (int prefix : {-1, kModules, kModules + 1}) {
    EXPECT_EQ(Refusal(ledger.Deliver(Freeze(1, prefix))), "BAD_PREFIX");
  }
  EXPECT_TRUE(ledger.Deliver(Freeze(1, 0)).ok());
  EXPECT_TRUE(ledger.Deliver(Freeze(2, kModules - 1)).ok());
}

TEST(PlanLedger, RemembersForgottenPlansAsDelivered) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  for (int64_t id = 1; id <= 4; ++id) ASSERT_TRUE(ledger.Deliver(Freeze(id)).ok());
  ledger.Forget(PlanId(3));
  EXPECT_FALSE(ledger.Find(PlanId(2)).has_value());
  EXPECT_TRUE(ledger.Find(PlanId(3)).has_value());
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(2))), "DUPLICATE_PLAN");
  EXPECT_EQ(ledger.watermark(), PlanId(4));
}

TEST(PlanLedger, SkipsPlansThatItLacksAndKeepsThoseThatItHas) {
  PlanLedger ledger(kGeneration, PlanId(0), kModules);
  ASSERT_TRUE(ledger.Deliver(Freeze(1)).ok());
  ASSERT_TRUE(ledger.Deliver(Freeze(4)).ok());
  ledger.SkipTo(PlanId(3));
  EXPECT_EQ(ledger.watermark(), PlanId(4));
  EXPECT_TRUE(ledger.Find(PlanId(1)).has_value());
  EXPECT_FALSE(ledger.Find(PlanId(2)).has_value());
  EXPECT_EQ(Refusal(ledger.Deliver(Freeze(2))), "DUPLICATE_PLAN");
  ledger.SkipTo(PlanId(2));
  EXPECT_EQ(ledger.watermark(), PlanId(4));
}

// Whatever is lost, repeated or overtaken, the watermark is the last id of which nothing before is missing.
TEST(PlanLedger, KeepsTheWatermarkContiguousUnderRandomDelivery) {
  std::mt19937 random(17);
  for (int round = 0; round < 200; ++round) {
    PlanLedger ledger(kGeneration, PlanId(0), kModules);
    std::set<int64_t> delivered;
    std::vector<int64_t> ids(20);
    std::iota(ids.begin(), ids.end(), 1);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::shuffle(ids.begin(), ids.end(), random);
      for (int64_t id : ids) {
        if (random() % 4 == 0) continue;
        EXPECT_EQ(ledger.Deliver(Freeze(id)).ok(), delivered.insert(id).second);
        int64_t expected = 0;
        while (delivered.contains(expected + 1)) ++expected;
        ASSERT_EQ(ledger.watermark(), PlanId(expected));
      }
    }
  }
}

}  // namespace
}  // namespace egeria::worker
