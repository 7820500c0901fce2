#include <memory>
#include <optional>
#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns a job of four modules that save a fifth of a step each (the last never freezes), of 1,000 steps.
JobShape ShapeOfFour(bool measured = true) {
  JobShape shape{4, 1000};
  if (measured) shape.step_shares = {0.2, 0.2, 0.2, 0.4};
  return shape;
}

// Returns a policy that freezes three modules at step 900.
std::unique_ptr<Policy> MakeLate(const JobShape& shape = ShapeOfFour()) {
  return MakePolicy(StagedConfig{.begin = 0.9, .end = 0.9, .stages = 1}, shape).value();
}

// Returns a step of 100 ms, and a switch that takes so long.
Observation At(int64_t step, double switch_seconds) {
  Observation observation;
  observation.step = step;
  observation.account = Account{.active_step_seconds = 0.1, .switch_seconds = switch_seconds};
  return observation;
}

Observation StepOnly(int64_t step) {
  Observation observation;
  observation.step = step;
  return observation;
}

TEST(WorthwhilePolicy, AFreezeThatCostsMoreThanItSavesIsLeftOut) {
  // The last 100 steps take 10 s, of which three modules save 6.
  for (const double switch_seconds : {5.9, 6.1}) {
    const auto policy = MakeLate();
    policy->Observe(At(500, switch_seconds));
    const std::optional<Decision> decision = policy->Observe(StepOnly(900));
    EXPECT_EQ(decision.has_value(), switch_seconds < 6);
    EXPECT_EQ(policy->frozen_prefix(), switch_seconds < 6 ? 3 : 0);
    if (decision) {
      EXPECT_THAT(policy->blocked(), IsEmpty());
      continue;
    }
    EXPECT_THAT(policy->status().blocked, HasSubstr("[NOT_WORTH_IT] freezing 3 layer modules would save 6 s in the 100 "
                                                    "steps that are left, and a switch takes 6.1 s"));
    for (int64_t step = 901; step <= 1000; ++step) EXPECT_FALSE(policy->Observe(At(step, switch_seconds)));
  }
}

TEST(WorthwhilePolicy, SharesThatNobodyHasMeasuredAreOfTheBackwardPass) {
  // Three of four modules take half of a step.
  for (const double switch_seconds : {4.9, 5.1}) {
    const auto policy = MakeLate(ShapeOfFour(false));
    policy->Observe(At(500, switch_seconds));
    EXPECT_EQ(policy->Observe(StepOnly(900)).has_value(), switch_seconds < 5);
  }
}

TEST(WorthwhilePolicy, WhatFreezingReallySavesCounts) {
  // The first module promises 20 ms a step and saves 10: the two others will save 20 ms in place of 40.
  for (const double switch_seconds : {1.9, 2.1}) {
    const auto policy = MakeLate();
    policy->Adopt(300, 1);
    Observation account = At(500, switch_seconds);
    account.account->frozen_step_seconds = 0.09;
    account.account->frozen_prefix = 1;
    policy->Observe(account);
    EXPECT_EQ(policy->Observe(StepOnly(900)).has_value(), switch_seconds < 2);
    EXPECT_EQ(policy->frozen_prefix(), switch_seconds < 2 ? 3 : 1);
  }
}

TEST(WorthwhilePolicy, TheLastStepsAreNotWorthASwitchThatCostsNothing) {
  const auto policy = MakePolicy(StagedConfig{.begin = 0.999, .end = 0.999, .stages = 1}, ShapeOfFour()).value();
  policy->Observe(At(500, 0));
  EXPECT_FALSE(policy->Observe(At(999, 0)));
  EXPECT_FALSE(policy->Observe(At(1000, 0)));
}

TEST(WorthwhilePolicy, BeforeAnythingIsMeasuredAFreezeNeedsStepsToCome) {
  for (const int64_t total : {100, 1000}) {
    JobShape shape = ShapeOfFour();
    shape.total_steps = total;
    const auto policy = MakeLate(shape);
    EXPECT_EQ(policy->Observe(StepOnly(total - total / 10)).has_value(), total == 1000);
  }
}

TEST(WorthwhilePolicy, UnfreezesAndOrdersAreLeftAlone) {
  const auto rule = MakePolicy(PlasticityConfig{.unfreeze_steps = {990}}, ShapeOfFour()).value();
  rule->Adopt(100, 2);
  rule->Observe(At(500, 1000));
  EXPECT_TRUE(rule->Observe(StepOnly(990)));
  const auto schedule = MakePolicy(ScheduleConfig{{{0.99, 2}}}, ShapeOfFour()).value();
  EXPECT_FALSE(schedule->wants_account());
  schedule->Observe(At(500, 1000));
  EXPECT_TRUE(schedule->Observe(StepOnly(990)));
}

TEST(WorthwhilePolicy, EveryPolicyButAnOrderWantsToKnow) {
  EXPECT_TRUE(MakePolicy(AutoConfig{}, ShapeOfFour()).value()->wants_account());
  EXPECT_FALSE(MakePolicy(NoneConfig{}, ShapeOfFour()).value()->wants_account());
  JobShape endless = ShapeOfFour();
  endless.total_steps = 0;
  EXPECT_FALSE(MakePolicy(SnrConfig{}, endless).value()->wants_account()) << "what is left is not known";
}

}  // namespace
}  // namespace egeria::policy
