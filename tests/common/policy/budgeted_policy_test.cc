#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/policy/policy_config.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

// Returns a job of four modules that save a fifth of a step each (the last never freezes), and of 1,000 steps.
JobShape ShapeWith(double budget) {
  JobShape shape{4, 1000};
  shape.step_shares = {0.2, 0.2, 0.2, 0.4};
  shape.budget = budget;
  return shape;
}

std::unique_ptr<Policy> MakeBudgeted(double budget, std::vector<ScheduleConfig::Entry> entries) {
  return MakePolicy(ScheduleConfig{std::move(entries)}, ShapeWith(budget)).value();
}

TEST(BudgetedPolicy, CutsADecisionToWhatTheBudgetAsksFor) {
  const auto policy = MakeBudgeted(0.15, {{0.5, 3}});
  const std::optional<Decision> decision = DecisionAt(*policy, 500);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->frozen_prefix, 2);  // 0.4 of half the time
  EXPECT_EQ(decision->reason,
            "the schedule freezes 3 of 4 modules from 50 % of 1000 steps on; 2 modules are enough for "
            "the budget of 15 %");
  EXPECT_EQ(policy->frozen_prefix(), 2);
}

TEST(BudgetedPolicy, CountsWhatWasSavedBefore) {
  const auto policy = MakeBudgeted(0.15, {{0.25, 1}, {0.75, 3}});
  EXPECT_EQ(DecisionAt(*policy, 250)->frozen_prefix, 1);  // 0.2 of three quarters: enough
  EXPECT_FALSE(DecisionAt(*policy, 750));
  EXPECT_EQ(policy->frozen_prefix(), 1);
  EXPECT_FALSE(policy->monitoring());
}

TEST(BudgetedPolicy, ReadsNoGradientsForAFreezeThatIsNotToCome) {
  StagedConfig staged;
  staged.veto = true;
  staged.begin = 0.5;
  staged.end = 0.9;
  const auto policy = MakePolicy(staged, ShapeWith(0.15)).value(), free = MakePolicy(staged, ShapeWith(0)).value();
  for (Policy* each : {policy.get(), free.get()}) {
    DecisionAt(*each, 499);
    EXPECT_TRUE(each->gradient_monitoring());
    EXPECT_EQ(DecisionAt(*each, 500)->frozen_prefix, 2);
    DecisionAt(*each, 699);
  }
  EXPECT_TRUE(free->gradient_monitoring());
  EXPECT_FALSE(policy->gradient_monitoring()) << "0.4 of half the time is enough";
}

TEST(BudgetedPolicy, CountsWhatWasSavedBeforeAResume) {
  JobShape shape = ShapeWith(0.15);
  shape.first_step = 600;
  shape.saved_before = 0.13;
  const auto policy = MakePolicy(ScheduleConfig{{{0.7, 3}}}, shape).value();
  EXPECT_EQ(DecisionAt(*policy, 700)->frozen_prefix, 1);  // 0.2 of 0.3 is more than the 0.02 that are left
}

TEST(BudgetedPolicy, FreezesAllThatItMayWhereTheBudgetIsOutOfReach) {
  const auto policy = MakeBudgeted(0.5, {{0.5, 3}});
  const std::optional<Decision> decision = DecisionAt(*policy, 500);
  EXPECT_EQ(decision->frozen_prefix, 3);
  EXPECT_EQ(decision->reason, "the schedule freezes 3 of 4 modules from 50 % of 1000 steps on");
}

TEST(BudgetedPolicy, CountsWhatFreezingHasReallySaved) {
  // The frozen modules save half of what their shares promise, as promised, and twice that.
  for (const auto& [frozen_step_seconds, second] :
       std::vector<std::pair<double, int>>{{0.09, 3}, {0.08, 2}, {0.06, 1}}) {
    const auto policy = MakeBudgeted(0.175, {{0.25, 1}, {0.5, 3}});
    EXPECT_TRUE(policy->wants_account());
    EXPECT_EQ(DecisionAt(*policy, 250)->frozen_prefix, 1);
    const Account tells_nothing{.active_step_seconds = 0.1};
    const Account tells{.active_step_seconds = 0.1, .frozen_step_seconds = frozen_step_seconds, .frozen_prefix = 1};
    for (const Account& account : {tells_nothing, tells, tells_nothing}) {
      Observation observation;
      observation.step = 300;
      observation.account = account;
      EXPECT_FALSE(policy->Observe(observation));
    }
    DecisionAt(*policy, 500);
    EXPECT_EQ(policy->frozen_prefix(), second);
  }
}

TEST(BudgetedPolicy, ASpeedThatHasChangedTellsLittle) {
  // The first module seems to save all of a step's time, and none: that counts as twice and half of the promise.
  for (const auto& [frozen_step_seconds, budget] : std::vector<std::pair<double, double>>{{0.001, 0.5}, {0.2, 0.1}}) {
    const auto policy = MakeBudgeted(budget, {{0.25, 1}, {0.5, 3}});
    EXPECT_EQ(DecisionAt(*policy, 250)->frozen_prefix, 1);
    Observation observation;
    observation.step = 300;
    observation.account = {.active_step_seconds = 0.1, .frozen_step_seconds = frozen_step_seconds, .frozen_prefix = 1};
    EXPECT_FALSE(policy->Observe(observation));
    EXPECT_EQ(DecisionAt(*policy, 500)->frozen_prefix, 2);
  }
}

TEST(BudgetedPolicy, LeavesUnfreezesAlone) {
  const auto policy = MakeBudgeted(0.1, {{0.1, 1}, {0.5, 0}, {0.6, 3}});
  EXPECT_EQ(DecisionAt(*policy, 100)->frozen_prefix, 1);
  EXPECT_EQ(DecisionAt(*policy, 500)->frozen_prefix, 0);  // 0.08 saved
  EXPECT_EQ(DecisionAt(*policy, 600)->frozen_prefix, 1);  // 0.02 more: a tenth of 0.2 * 0.4
}

TEST(BudgetedPolicy, GoesOnFromWhatSomebodyElseHasFrozen) {
  const auto policy = MakeBudgeted(0.15, {{0.5, 3}});
  policy->Adopt(100, 1);
  EXPECT_FALSE(DecisionAt(*policy, 500)) << "0.2 of 0.9 is enough";
  policy->Adopt(600, 0);
  EXPECT_EQ(policy->frozen_prefix(), 0);
}

TEST(BudgetedPolicy, WhatASecondPassTakesBackDoesNotCount) {
  const auto policy = MakeBudgeted(0.15, {{0, 1}, {0.5, 3}});
  EXPECT_EQ(DecisionAt(*policy, 0)->frozen_prefix, 1);
  EXPECT_FALSE(DecisionAt(*policy, 900));
  policy->Adopt(10, 0);  // an old checkpoint
  EXPECT_EQ(DecisionAt(*policy, 500)->frozen_prefix, 2);
}

TEST(BudgetedPolicy, NeedsTheNumberOfSteps) {
  JobShape shape = ShapeWith(0.2);
  shape.total_steps = 0;
  const absl::Status status = MakePolicy(NoneConfig{}, shape).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("[BAD_POLICY] a budget needs the number of steps"), std::string::npos) << status;
  shape.total_steps = 1000;
  shape.budget = 1.5;
  EXPECT_NE(MakePolicy(NoneConfig{}, shape).status().message().find("budget is 1.5"), std::string::npos);
}

}  // namespace
}  // namespace egeria::policy
