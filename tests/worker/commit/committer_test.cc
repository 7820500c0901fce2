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

// Returns what a rank holds whose plans are in `ledger`.
HeldPlans HeldBy(const PlanLedger& ledger) {
  return {ledger.watermark(), [&ledger](PlanId id) {
            const std::optional<Plan> plan = ledger.Find(id);
            EXPECT_TRUE(plan.has_value()) << "plan " << id << " is asked for, which this rank lacks";
            return plan.has_value() ? PlanContent{plan->generation.value(), plan->frozen_prefix} : PlanContent();
          }};
}

// Returns what a rank holds whose plans up to `watermark` freeze as many modules as their number.
HeldPlans HeldUpTo(int64_t watermark) {
  return {PlanId(watermark), [](PlanId id) { return PlanContent{.frozen_prefix = id.value()}; }};
}

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
    const absl::StatusOr<Committer::Outcome> outcome = committer.Tick(HeldBy(ledger));
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (!outcome.ok() || !outcome->apply.has_value()) continue;
    EXPECT_TRUE(ledger.Find(*outcome->apply).has_value()) << "committed a plan that this rank lacks";
    applied.emplace_back(step, outcome->apply->value());
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

// Plays one rank for which plan `disputed` freezes `prefix` modules; it has plan 1 from step 1 on, and one more after
// each step of `later`. Returns the outcomes of the steps 1, 2 and so on.
std::vector<Committer::Outcome> PlayDispute(const GroupMember& member, int64_t disputed, int64_t prefix,
                                            const std::vector<int>& later) {
  Committer committer(GlooGroup(member, "commit"), PlanId(0));
  HeldPlans held = HeldUpTo(1);
  held.content = [=](PlanId id) {
    return PlanContent{.generation = 4, .frozen_prefix = id == PlanId(disputed) ? prefix : id.value()};
  };
  std::vector<Committer::Outcome> outcomes;
  for (int step = 1; step <= 8; ++step) {
    absl::StatusOr<Committer::Outcome> outcome = committer.Tick(held);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    outcomes.push_back(*std::move(outcome));
    if (std::find(later.begin(), later.end(), step) != later.end()) held.watermark = held.watermark.next();
  }
  EXPECT_TRUE(committer.Stop().ok());
  return outcomes;
}

TEST(Committer, APlanThatDoesNotSayTheSameEverywhereIsDroppedAndToldOfByAll) {
  RunRanks(3, [](const GroupMember& member) {
    const auto outcomes = PlayDispute(member, 1, member.rank == 2 ? 7 : 5, {});
    for (const Committer::Outcome& outcome : outcomes) EXPECT_EQ(outcome.apply, std::nullopt);
    ASSERT_TRUE(outcomes[2].dispute.has_value());
    EXPECT_EQ(outcomes[2].dispute->plan, PlanId(1));
    EXPECT_EQ(outcomes[2].dispute->by_rank, (std::vector<PlanContent>{{4, 5}, {4, 5}, {4, 7}}));
    for (size_t i = 3; i < outcomes.size(); ++i) EXPECT_FALSE(outcomes[i].dispute.has_value());
  });
}

TEST(Committer, APlanAfterADisputedOneIsApplied) {
  RunRanks(2, [](const GroupMember& member) {
    const auto outcomes = PlayDispute(member, 1, member.rank, {4});
    EXPECT_EQ(outcomes[5].apply, PlanId(2));
    EXPECT_TRUE(outcomes[2].dispute.has_value());
  });
}

TEST(Committer, ADisputeIsFoundWhereOneRankHasNewerPlansToo) {
  RunRanks(2, [](const GroupMember& member) {
    const auto outcomes =
        PlayDispute(member, 1, member.rank, member.rank == 0 ? std::vector<int>{} : std::vector{1, 2});
    for (const Committer::Outcome& outcome : outcomes) EXPECT_EQ(outcome.apply, std::nullopt);
    const auto disputes = std::count_if(outcomes.begin(), outcomes.end(),
                                        [](const Committer::Outcome& outcome) { return outcome.dispute.has_value(); });
    EXPECT_EQ(disputes, 1);
  });
}

TEST(Committer, WhatRanksWithDifferentNewestPlansTellIsNotCompared) {
  RunRanks(2, [](const GroupMember& member) {
    // Rank 1 has plan 2 already when the ranks first tell each other.
    Committer committer(GlooGroup(member, "commit"), PlanId(0));
    std::vector<PlanId> applied;
    for (int step = 1; step <= 6; ++step) {
      const absl::StatusOr<Committer::Outcome> outcome = committer.Tick(HeldUpTo(step < 4 ? 1 + member.rank : 2));
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(outcome->dispute.has_value());
      if (outcome->apply.has_value()) applied.push_back(*outcome->apply);
    }
    EXPECT_TRUE(committer.Stop().ok());
    EXPECT_EQ(applied, (std::vector<PlanId>{PlanId(1), PlanId(2)}));
  });
}

TEST(Committer, APlanThatIsVoidOnAllRanksIsPassedOver) {
  RunRanks(2, [](const GroupMember& member) {
    for (const Committer::Outcome& outcome : PlayDispute(member, 1, -1, {})) {
      EXPECT_EQ(outcome.apply, std::nullopt);
      EXPECT_FALSE(outcome.dispute.has_value());
    }
  });
}

TEST(Committer, APlanThatIsVoidOnOneRankIsDropped) {
  RunRanks(2, [](const GroupMember& member) {
    const auto outcomes = PlayDispute(member, 1, member.rank == 0 ? 2 : -1, {4});
    ASSERT_TRUE(outcomes[2].dispute.has_value());
    EXPECT_TRUE(outcomes[2].dispute->by_rank[1].is_void());
    EXPECT_EQ(outcomes[5].apply, PlanId(2));
  });
}

TEST(Committer, OneRankNeedsNoGroup) {
  Committer committer(nullptr, PlanId(3));
  EXPECT_EQ(committer.Tick(HeldUpTo(3))->apply, std::nullopt);
  EXPECT_EQ(committer.Tick(HeldUpTo(5))->apply, PlanId(5));
  EXPECT_EQ(committer.Tick(HeldUpTo(5))->apply, std::nullopt);
  EXPECT_EQ(committer.applied(), PlanId(5));
  EXPECT_TRUE(committer.Stop().ok());
}

TEST(Committer, AMissingRankIsAStatus) {
  RunRanks(2, [](const GroupMember& member) {
    Committer committer(GlooGroup(member, "commit", std::chrono::seconds(5)), PlanId(0));
    if (member.rank == 1) return;  // never ticks
    ASSERT_TRUE(committer.Tick(HeldUpTo(1)).ok());
    const absl::StatusOr<Committer::Outcome> second = committer.Tick(HeldUpTo(1));
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

TEST(ParameterChecksum, TakesTensorsOfEveryTypeAndLayout) {
  const at::Tensor bytes = at::arange(24, at::kByte).view({6, 4}).t();
  for (const at::ScalarType type :
       {at::kChar, at::kFloat8_e4m3fn, at::kFloat8_e8m0fnu, at::kFloat4_e2m1fn_x2, at::kUInt4, at::kBits8}) {
    const at::Tensor other = bytes.clone().fill_(7).view(type);
    EXPECT_NE(HashTensors({bytes.view(type)}), HashTensors({other})) << type;
  }
  for (const at::ScalarType type :
       {at::kShort, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexHalf, at::kComplexDouble}) {
    const at::Tensor zeros = at::zeros({2, 32}, at::kByte).view(type), ones = at::ones({2, 32}, at::kByte).view(type);
    EXPECT_NE(HashTensors({zeros.t()}), HashTensors({ones.t()})) << type;
  }
  const at::Tensor dense = at::eye(4);
  EXPECT_NE(HashTensors({dense.to_sparse()}), HashTensors({(2 * dense).to_sparse()}));
  EXPECT_NE(HashTensors({dense.to_sparse_csr()}), HashTensors({(2 * dense).to_sparse_csr()}));
  EXPECT_NE(HashTensors({at::quantize_per_tensor(dense, 0.1, 0, at::kQInt8)}),
            HashTensors({at::quantize_per_tensor(2 * dense, 0.2, 0, at::kQInt8)}));
  EXPECT_NE(HashTensors({at::empty({2}, at::kMeta)}), HashTensors({at::empty({3}, at::kMeta)}));
}

}  // namespace
}  // namespace egeria::worker
