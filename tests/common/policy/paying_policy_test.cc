#include <memory>
#include <string>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns a job of four modules that save a fifth of a step each (the last never freezes), and of 1,000 steps of 100
// ms: it saves 60 s at most.
JobShape PayingShape() {
  JobShape shape{4, 1000};
  shape.step_shares = {0.2, 0.2, 0.2, 0.4};
  shape.ranks = 2;
  return shape;
}

std::unique_ptr<Policy> MakeSnr() { return MakePolicy(SnrConfig{}, PayingShape()).value(); }

Observation AccountAt(int64_t step, double saved, double measuring, double frozen_step_seconds = 0,
                      int frozen_prefix = 0) {
  Observation observation;
  observation.step = step;
  observation.account = {saved, measuring, 0.1, frozen_step_seconds, frozen_prefix};
  return observation;
}

bool IsOff(const Policy& policy) { return policy.status().blocked.starts_with("[DOES_NOT_PAY]"); }

// Returns a policy that would measure gradients now.
std::unique_ptr<Policy> MakeMeasuring() {
  auto policy = MakeSnr();
  Observation observation;
  observation.step = 390;
  policy->Observe(observation);
  EXPECT_TRUE(policy->gradient_monitoring());
  return policy;
}

TEST(PayingPolicy, IsSwitchedOffWhenItCannotEarnBackWhatItCost) {
  const auto policy = MakeMeasuring();
  policy->Observe(AccountAt(400, 0, 35.9));  // 600 steps: 36 s
  for (int64_t step : {401, 402, 403}) policy->Observe(AccountAt(step, 0, 35.8));
  EXPECT_FALSE(IsOff(*policy));
  policy->Observe(AccountAt(410, 0, 35.5));
  policy->Observe(AccountAt(420, 0, 35.5));
  EXPECT_FALSE(IsOff(*policy));
  EXPECT_TRUE(policy->wants_account());
  policy->Observe(AccountAt(430, 0, 35.5));
  EXPECT_THAT(policy->status().blocked, HasSubstr("by step 430 measuring has taken 35.5 s and freezing saved 0 s, and "
                                                  "the 570 steps left can save 34.2 s at most"));
  EXPECT_FALSE(policy->gradient_monitoring());
  EXPECT_FALSE(policy->monitoring());
  EXPECT_FALSE(policy->wants_account());
  EXPECT_FALSE(policy->wants_loss());
}

TEST(PayingPolicy, OneAccountIsNotEnough) {
  const auto policy = MakeMeasuring();
  for (int i = 0; i < 5; ++i) {
    policy->Observe(AccountAt(500, 0, 60));
    policy->Observe(AccountAt(500, 0, 60));
    policy->Observe(AccountAt(500, 20, 40));
  }
  EXPECT_FALSE(IsOff(*policy));
}

TEST(PayingPolicy, WhatFreezingReallySavesCounts) {
  // Two modules promise 40 ms a step. They save 4 ms, so all three will save 6 ms: .6 s in the last 100 steps.
  for (const bool comes_true : {false, true}) {
    const auto policy = MakeMeasuring();
    policy->Adopt(400, 2);
    for (int i = 0; i < 3; ++i) policy->Observe(AccountAt(900, 2, 3, comes_true ? 0.06 : 0.096, 2));
    EXPECT_EQ(IsOff(*policy), !comes_true);
    EXPECT_EQ(policy->frozen_prefix(), 2);
  }
}

TEST(PayingPolicy, FreezingThatSavesNothingIsSwitchedOffWithTheFirstSecondSpent) {
  const auto policy = MakeMeasuring();
  policy->Adopt(400, 2);
  for (int i = 0; i < 3; ++i) policy->Observe(AccountAt(420, -0.1, 0.2, 0.101, 2));
  EXPECT_TRUE(IsOff(*policy));
}

TEST(PayingPolicy, NothingFreezesOnceItIsOff) {
  // This is the paper's rule at the point of freezing: the plasticity is flat, and the bootstrap was left out.
  PlasticityConfig config;
  config.bootstrap = false;
  config.interval_steps = 1;
  config.window = 3;
  for (const bool pays : {true, false}) {
    const auto policy = MakePolicy(config, PayingShape()).value();
    for (int i = 0; i < 3; ++i) policy->Observe(AccountAt(1, 0, pays ? 1 : 100));
    EXPECT_EQ(IsOff(*policy), !pays);
    int frozen = 0;
    for (int64_t step = 2; step < 200; ++step) {
      Observation reading;
      reading.step = step;
      reading.module = policy->frozen_prefix();
      reading.plasticity = 0.5;
      if (policy->Observe(reading)) ++frozen;
    }
    EXPECT_EQ(frozen > 0, pays);
    EXPECT_EQ(policy->frozen_prefix() > 0, pays);
  }
}

TEST(PayingPolicy, UnfreezesAreLeftAlone) {
  const auto policy = MakePolicy(PlasticityConfig{.unfreeze_steps = {500}}, PayingShape()).value();
  policy->Adopt(100, 2);
  for (int i = 0; i < 3; ++i) policy->Observe(AccountAt(200, 0, 100));
  ASSERT_TRUE(IsOff(*policy));
  Observation observation;
  observation.step = 500;
  const std::optional<Decision> decision = policy->Observe(observation);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kUnfreeze);
}

TEST(PayingPolicy, WhatMeasuresNothingWantsNoAccount) {
  EXPECT_TRUE(MakeSnr()->wants_account());
  EXPECT_FALSE(MakePolicy(NoneConfig{}, PayingShape()).value()->wants_account());
  EXPECT_FALSE(MakePolicy(ScheduleConfig{{{0.5, 1}}}, PayingShape()).value()->wants_account());
  JobShape endless = PayingShape();
  endless.total_steps = 0;
  EXPECT_FALSE(MakePolicy(PlasticityConfig{}, endless).value()->wants_account()) << "what is left is not known";
  JobShape budgeted = PayingShape();
  budgeted.budget = 0.1;
  EXPECT_TRUE(MakePolicy(SnrConfig{}, budgeted).value()->wants_account());
  EXPECT_THAT(MakeSnr()->status().blocked, IsEmpty());
}

}  // namespace
}  // namespace egeria::policy
