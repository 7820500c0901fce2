#include <memory>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

Decision FirstDecision(const FinetuneConfig& config, const JobShape& shape) {
  const auto policy = MakePolicy(config, shape).value();
  const int64_t awaited = policy->awaited_step().value_or(-1);
  EXPECT_EQ(awaited, config.frozen_prefix > 0 ? 0 : 64);
  if (awaited > 0) {
    EXPECT_FALSE(policy->Observe({.step = awaited - 1}));
  }
  const auto decision = policy->Observe({.step = awaited + 3});
  EXPECT_FALSE(policy->awaited_step());
  EXPECT_FALSE(policy->Observe({.step = awaited + 4}));
  return decision.value_or(Decision());
}

// Five modules save a tenth of a step each, as far as was told, and the budget is 30 %.
std::unique_ptr<Policy> MakeFrozen() {
  JobShape shape{5, 1000};
  shape.step_shares = {0.1, 0.1, 0.1, 0.1, 0.1};
  auto policy = MakePolicy(FinetuneConfig{}, shape).value();
  EXPECT_EQ(policy->awaited_step(), 40);
  EXPECT_EQ(policy->Observe({.step = 40}).value_or(Decision()).frozen_prefix, 3);
  return policy;
}

// A step with nothing frozen takes 100 ms.
Observation FrozenAccountAt(int64_t step, double frozen_step_seconds, int frozen_prefix) {
  Observation observation;
  observation.step = step;
  observation.account = {
      .active_step_seconds = 0.1, .frozen_step_seconds = frozen_step_seconds, .frozen_prefix = frozen_prefix};
  return observation;
}

TEST(FinetunePolicy, FreezesWhatTheBudgetAsksForOnceStepsHaveBeenMeasured) {
  JobShape shape{5, 0};
  shape.step_shares = {0.1, 0.15, 0.2, 0.2, 0.1};
  shape.parameter_counts = {1, 1, 1, 1, 1000};
  const Decision decision = FirstDecision({}, shape);
  EXPECT_EQ(decision.step, 67);
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
  EXPECT_FALSE(MakePolicy(FinetuneConfig{.frozen_prefix = 2}, JobShape{4, 0}).value()->wants_account());
}

TEST(FinetunePolicy, UnfreezesWhatTheBudgetDoesNotNeedAsMeasured) {
  const auto policy = MakeFrozen();
  EXPECT_TRUE(policy->wants_account());
  EXPECT_FALSE(policy->Observe(FrozenAccountAt(50, 0, 0))) << "the freeze has not taken effect";
  const std::optional<Decision> decision = policy->Observe(FrozenAccountAt(60, 0.04, 3));  // twice what was promised
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kUnfreeze);
  EXPECT_EQ(decision->frozen_prefix, 2);
  EXPECT_EQ(decision->reason,
            "3 of 5 modules save 60.0 % of a step's time as measured: for a budget of 30 % 2 are enough");
  EXPECT_FALSE(policy->Observe(FrozenAccountAt(90, 0.01, 2))) << "once";
}

TEST(FinetunePolicy, WaitsForAFifthOfAShortTrainingAtMost) {
  EXPECT_EQ(MakePolicy(FinetuneConfig{}, JobShape{4, 100}).value()->awaited_step(), 20);
  EXPECT_EQ(MakePolicy(FinetuneConfig{}, JobShape{4, 300}).value()->awaited_step(), 40);
  EXPECT_EQ(MakePolicy(FinetuneConfig{}, JobShape{4, 3000}).value()->awaited_step(), 60);
  EXPECT_EQ(MakePolicy(FinetuneConfig{}, JobShape{4, 100'000}).value()->awaited_step(), 64);
}

TEST(FinetunePolicy, KeepsToTheJobsBudgetWhereThatIsLess) {
  JobShape shape{5, 1000};
  shape.step_shares = {0.1, 0.1, 0.1, 0.1, 0.1};
  shape.budget = 0.2;
  const auto policy = MakePolicy(FinetuneConfig{}, shape).value();
  EXPECT_EQ(policy->Observe({.step = 40}).value_or(Decision()).frozen_prefix, 2);
  EXPECT_EQ(policy->Observe(FrozenAccountAt(90, 0.06, 2)).value_or(Decision()).frozen_prefix, 1)
      << "twice what was promised";
}

TEST(FinetunePolicy, GoesNoDeeperWhereFreezingSavesLess) {
  for (const double seconds : {0.07, 0.09, 0.11}) {
    const auto policy = MakeFrozen();
    EXPECT_FALSE(policy->Observe(FrozenAccountAt(60, seconds, 3)));
    EXPECT_EQ(policy->frozen_prefix(), 3);
  }
}

TEST(FinetunePolicy, UnfreezesNothingThatSomebodyElseHasFrozen) {
  const auto policy = MakeFrozen();
  policy->Adopt(50, 4);
  EXPECT_FALSE(policy->Observe(FrozenAccountAt(90, 0.01, 4)));
  EXPECT_EQ(policy->frozen_prefix(), 4);
}

TEST(FinetunePolicy, FreezesAnewWhereTrainingBeginsAnewBeforeTheDecision) {
  const auto policy = MakeFrozen();
  policy->Adopt(10, 0);
  EXPECT_FALSE(policy->Observe({.step = 39}));
  EXPECT_EQ(policy->Observe({.step = 40}).value_or(Decision()).frozen_prefix, 3);
  EXPECT_EQ(policy->Observe(FrozenAccountAt(60, 0.04, 3)).value_or(Decision()).frozen_prefix, 2);
}

TEST(FinetunePolicy, LeavesWhatSomebodyElseHasSet) {
  const auto policy = MakePolicy(FinetuneConfig{}, JobShape{4, 0}).value();
  policy->Adopt(0, 1);
  EXPECT_FALSE(policy->Observe({.step = 100}));
  EXPECT_EQ(policy->frozen_prefix(), 1);
}

}  // namespace
}  // namespace egeria::policy
