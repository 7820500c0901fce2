#include "worker/commit/committer.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "worker/agent/plan_ledger.h"
#include "worker/commit/parameter_checksum.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;

// (step, plan) as one rank applied them.
using Applied = std::vector<std::pair<int, int64_t>>;

// How plans reach one rank: plan i is sent at step i; the network decides when it arrives.
struct Network {
  int delay = 0;            // steps, uniformly up to this
  double loss = 0;          // probability that a sending is lost; it is repeated at every following step
  bool reorder = false;     // plans of one step arrive in any order
  int deaf_from = 1 << 30;  // nothing arrives from this step on...
  int deaf_to = 1 << 30;    // ...until this one
};

struct Scenario {
  Network by_rank[3];
  int ranks = 2;
  int steps = 120;
  int plans = 60;
};

// Plays one rank: plans arrive as the network says, a tick at the end of each step.
Applied PlayRank(const Scenario& scenario, const GroupMember& member) {
  const Network& network = scenario.by_rank[member.rank];
  std::mt19937 random(100 + member.rank);
  PlanLedger ledger(Generation(0), PlanId(0), 100);
  Committer committer(GlooGroup(member, "commit"), PlanId(0));
  std::vector<std::pair<int, int64_t>> under_way;  // arrival, plan
  std::vector<int64_t> unsent;
  Applied applied;
  for (int step = 1; step <= scenario.steps; ++step) {
    if (step <= scenario.plans) unsent.push_back(step);
    std::vector<int64_t> lost;
    for (const int64_t plan : unsent) {
      if (std::uniform_real_distribution<>(0, 1)(random) < network.loss) {
        lost.push_back(plan);
      } else {
        under_way.emplace_back(step + std::uniform_int_distribution<>(0, network.delay)(random), plan);
      }
    }
    unsent = lost;
    if (network.reorder) std::shuffle(under_way.begin(), under_way.end(), random);
    const bool deaf = step >= network.deaf_from && step < network.deaf_to;
    if (!deaf) {
      std::erase_if(under_way, [&](const auto& message) {
        if (message.first > step) return false;
        EXPECT_TRUE(
            ledger.Deliver({PlanId(message.second), Generation(0), static_cast<int>(message.second) % 90, ""}).ok());
        return true;
      });
    }
    const absl::StatusOr<std::optional<PlanId>> plan = committer.Tick(ledger.watermark());
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok() && plan->has_value()) {
      EXPECT_TRUE(ledger.Find(**plan).has_value()) << "committed a plan that this rank lacks";
      applied.emplace_back(step, (*plan)->value());
    }
  }
  EXPECT_TRUE(committer.Stop().ok());
  return applied;
}

// Returns what all ranks applied; fails unless they all applied the same at the same steps.
Applied Play(const Scenario& scenario) {
  std::vector<Applied> applied(scenario.ranks);
  RunRanks(scenario.ranks, [&](const GroupMember& member) { applied[member.rank] = PlayRank(scenario, member); });
  for (const Applied& other : applied) EXPECT_EQ(other, applied[0]);
  return applied[0];
}

TEST(Committer, AppliesEveryPlanOneStepLaterWhenNothingIsLost) {
  const Applied applied = Play({.steps = 20, .plans = 10});
  ASSERT_EQ(applied.size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(applied[i], std::make_pair(i + 2, int64_t{i + 1}));
}

TEST(Committer, AllRanksApplyTheSamePlansAtTheSameStepsUnderDelay) {
  const Applied applied = Play({.by_rank = {{}, {.delay = 20}}});
  EXPECT_EQ(applied.back().second, 60);
}

TEST(Committer, AllRanksApplyTheSamePlansAtTheSameStepsUnderLoss) {
  const Applied applied = Play({.by_rank = {{.loss = 0.2}, {.loss = 0.5}}});
  EXPECT_EQ(applied.back().second, 60);
}

TEST(Committer, AllRanksApplyTheSamePlansAtTheSameStepsUnderReordering) {
  const Applied applied = Play({.by_rank = {{.delay = 15, .reorder = true},
                                            {.delay = 5, .loss = 0.3, .reorder = true},
                                            {.delay = 30, .reorder = true}},
                                .ranks = 3});
  EXPECT_EQ(applied.back().second, 60);
}

TEST(Committer, NobodyAppliesWhatOneRankLacks) {
  const Applied applied = Play({.by_rank = {{}, {.deaf_from = 1}}});
  EXPECT_TRUE(applied.empty());
}

TEST(Committer, AllApplyAtOnceWhenACutRankIsBack) {
  const Applied applied = Play({.by_rank = {{}, {.deaf_from = 10, .deaf_to = 80}}});
  for (const auto& [step, plan] : applied) {
    if (step > 10 && step < 80) {
      EXPECT_LE(plan, 9) << "at step " << step;
    }
  }
  EXPECT_EQ(applied.back(), std::make_pair(81, int64_t{60}));
}

TEST(Committer, OneRankNeedsNoGroup) {
  Committer committer(nullptr, PlanId(3));
  EXPECT_EQ(*committer.Tick(PlanId(3)), std::nullopt);
  EXPECT_EQ(*committer.Tick(PlanId(5)), PlanId(5));
  EXPECT_EQ(*committer.Tick(PlanId(5)), std::nullopt);
  EXPECT_EQ(committer.applied(), PlanId(5));
  EXPECT_TRUE(committer.Stop().ok());
}

TEST(Committer, AMissingRankIsAStatus) {
  RunRanks(2, [](const GroupMember& member) {
    Committer committer(GlooGroup(member, "commit", std::chrono::seconds(5)), PlanId(0));
    if (member.rank == 1) return;  // never ticks
    ASSERT_TRUE(committer.Tick(PlanId(1)).ok());
    const absl::StatusOr<std::optional<PlanId>> second = committer.Tick(PlanId(1));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
    EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr("[COMMIT_FAILED]"));
    EXPECT_EQ(committer.applied(), PlanId(0));
  });
}

TEST(ParameterChecksum, TellsRanksThatDifferInOneBit) {
  RunRanks(3, [](const GroupMember& member) {
    const ProcessGroupPtr group = GlooGroup(member, "checksum");
    at::Tensor weights = at::ones({7, 5});
    EXPECT_TRUE(*IdenticalOnAllRanks(HashTensors({weights}), group));
    if (member.rank == 2) reinterpret_cast<uint8_t*>(weights.mutable_data_ptr())[17] ^= 1;
    EXPECT_FALSE(*IdenticalOnAllRanks(HashTensors({weights}), group));
  });
}

TEST(ParameterChecksum, DependsOnShapeAndTypeAndOrder) {
  const at::Tensor a = at::zeros({2, 3}), b = at::ones({2, 3});
  EXPECT_NE(HashTensors({a}), HashTensors({a.view({3, 2})}));
  EXPECT_NE(HashTensors({a}), HashTensors({at::zeros({2, 3}, at::kInt)}));
  EXPECT_NE(HashTensors({a, b}), HashTensors({b, a}));
  EXPECT_EQ(HashTensors({a.t()}), HashTensors({a.t().contiguous()}));
}

}  // namespace
}  // namespace egeria::worker
