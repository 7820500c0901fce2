#include "controller/policy/finetune_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

Decision FirstDecision(const FinetuneConfig& config, const JobShape& shape) {
  const auto policy = MakePolicy(config, shape).value();
  EXPECT_EQ(policy->awaited_step(), 0);
  const auto decision = policy->Observe({.step = 3});
  EXPECT_FALSE(policy->awaited_step());
  EXPECT_FALSE(policy->Observe({.step = 4}));
  return decision.value_or(Decision());
}

TEST(FinetunePolicy, FreezesWhatTheBudgetAsksForWithTheFirstObservation) {
  JobShape shape{5, 0};
  shape.step_shares = {0.1, 0.15, 0.2, 0.2, 0.1};
  shape.parameter_counts = {1, 1, 1, 1, 1000};
  const Decision decision = FirstDecision({}, shape);
  EXPECT_EQ(decision.step, 3);
  EXPECT_EQ(decision.frozen_prefix, 3);
  EXPECT_THAT(decision.reason, HasSubstr("45.0 % of a step's time, for a budget of 30 %"));
  EXPECT_EQ(FirstDecision({.budget = 0.25}, shape).frozen_prefix, 2);
  EXPECT_EQ(FirstDecision({.budget = 0.01}, shape).frozen_prefix, 1);
}

TEST(FinetunePolicy, SaysWhereTheBudgetIsOutOfReach) {
  JobShape shape{3, 0};
  shape.step_shares = {0.1, 0.1, 0.5};
  const Decision decision = FirstDecision({}, shape);
  EXPECT_EQ(decision.frozen_prefix, 2);
  EXPECT_THAT(decision.reason, HasSubstr("which all but the last module do not reach"));
}

TEST(FinetunePolicy, TakesParametersForTimeAndSaysSo) {
  JobShape shape{4, 0};
  shape.step_shares = {0, 0, 0, 0};
  shape.parameter_counts = {50, 30, 10, 10};
  const Decision decision = FirstDecision({}, shape);
  EXPECT_EQ(decision.frozen_prefix, 1);
  EXPECT_THAT(decision.reason, HasSubstr("50.0 % of the parameters, since how long the modules take is unknown"));
}

TEST(FinetunePolicy, TakesAGivenPrefix) {
  EXPECT_EQ(FirstDecision({.frozen_prefix = 2}, {4, 0}).frozen_prefix, 2);
}

TEST(FinetunePolicy, LeavesWhatSomebodyElseHasSet) {
  const auto policy = MakePolicy(FinetuneConfig{}, JobShape{4, 0}).value();
  policy->Adopt(0, 1);
  EXPECT_FALSE(policy->Observe({.step = 1}));
  EXPECT_EQ(policy->frozen_prefix(), 1);
}

}  // namespace
}  // namespace egeria::policy
