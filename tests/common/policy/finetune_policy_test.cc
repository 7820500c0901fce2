#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/policy/policy_config.h"
#include "common/policy/training_fractions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

const FinetuneConfig kConfig{.budget = 0.3};

Decision FirstDecision(const FinetuneConfig& config, const JobShape& shape) {
  const auto policy = MakePolicy(config, shape).value();
  const int64_t awaited = policy->awaited_step().value_or(-1);
  EXPECT_EQ(awaited, config.frozen_prefix > 0 ? 0 : 8);
  if (awaited > 0) {
    EXPECT_FALSE(policy->Observe({.step = awaited - 1}));
  }
  const auto decision = policy->Observe({.step = awaited + 3});
  EXPECT_FALSE(policy->Observe({.step = awaited + 4}));
  return decision.value_or(Decision());
}

// Five modules save a tenth of a step each, as far as was told, and the budget is 30 %.
JobShape ShapeOf(int64_t total_steps) {
  JobShape shape{5, total_steps};
  shape.step_shares = {0.1, 0.1, 0.1, 0.1, 0.1};
  return shape;
}

std::unique_ptr<Policy> MakeFrozen(const FinetuneConfig& config = kConfig) {
  auto policy = MakePolicy(config, ShapeOf(1000)).value();
  EXPECT_EQ(policy->awaited_step(), 8);
  EXPECT_EQ(policy->Observe({.step = 8}).value_or(Decision()).frozen_prefix, 3);
  return policy;
}

TEST(FinetunePolicy, FreezesWhatTheBudgetAsksForOnceStepsHaveBeenMeasured) {
  JobShape shape{5, 0};
  shape.step_shares = {0.1, 0.15, 0.2, 0.2, 0.1};
  shape.parameter_counts = {1, 1, 1, 1, 1000};
  const Decision decision = FirstDecision(kConfig, shape);
  EXPECT_EQ(decision.step, 11);
  EXPECT_EQ(decision.frozen_prefix, 2) << "the nearest";
  EXPECT_THAT(decision.reason, HasSubstr("25.0 % of a step's time, for a budget of 30 %"));
  EXPECT_EQ(FirstDecision({.budget = 0.36}, shape).frozen_prefix, 3);
  EXPECT_EQ(FirstDecision({}, shape).frozen_prefix, 2) << "the default is 25 %";
  EXPECT_EQ(FirstDecision({.budget = 0.01}, shape).frozen_prefix, 1);
}

TEST(FinetunePolicy, SaysWhereTheBudgetIsOutOfReach) {
  JobShape shape{3, 0};
  shape.step_shares = {0.1, 0.1, 0.5};
  const Decision decision = FirstDecision(kConfig, shape);
  EXPECT_EQ(decision.frozen_prefix, 2);
  EXPECT_THAT(decision.reason, HasSubstr("which all but the last module do not reach"));
}

TEST(FinetunePolicy, TakesParametersForTimeAndSaysSo) {
  JobShape shape{4, 0};
  shape.step_shares = {0, 0, 0, 0};
  shape.parameter_counts = {50, 30, 10, 10};
  const Decision decision = FirstDecision(kConfig, shape);
  EXPECT_EQ(decision.frozen_prefix, 1);
  EXPECT_THAT(decision.reason, HasSubstr("50.0 % of the parameters, since how long the modules take is unknown"));
}

TEST(FinetunePolicy, TakesAGivenPrefix) { EXPECT_EQ(FirstDecision({.frozen_prefix = 2}, {4, 0}).frozen_prefix, 2); }

TEST(FinetunePolicy, DeepensAsLessIsLeftToLearn) {
  JobShape shape{9, 1000};
  shape.step_shares = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
  const auto prefixes = [](const FinetuneConfig& config, const JobShape& shape) {
    const auto policy = MakePolicy(config, shape).value();
    std::vector<std::pair<int64_t, int>> found;
    for (int64_t step = 0; step <= 1000; ++step) {
      if (const auto decision = policy->Observe({.step = step})) found.emplace_back(step, decision->frozen_prefix);
    }
    return found;
  };
  using Found = std::vector<std::pair<int64_t, int>>;
  EXPECT_EQ(prefixes(kConfig, shape), (Found{{8, 3}, {484, 5}, {734, 6}})) << "as if rates fell in a straight line";
  shape.planned_learning_rates = {1, 0};
  EXPECT_EQ(prefixes(kConfig, shape), (Found{{8, 3}, {484, 5}, {734, 6}}));
  shape.planned_learning_rates = {1, 1};
  EXPECT_EQ(prefixes(kConfig, shape), (Found{{8, 3}, {734, 5}, {922, 6}}));
  shape.planned_learning_rates = {1, 0, 0, 0, 0};
  EXPECT_EQ(prefixes(kConfig, shape), (Found{{8, 3}, {109, 5}, {172, 6}}));
  EXPECT_EQ(prefixes({.budget = 0.3, .stages = 1}, shape), (Found{{8, 3}}));
  EXPECT_EQ(prefixes({.frozen_prefix = 2}, shape), (Found{{0, 2}}));
  shape.budget = 0.2;
  EXPECT_EQ(prefixes(kConfig, shape), (Found{{8, 2}})) << "a job's budget is all that it wants to be saved";
}

TEST(FinetunePolicy, AStageFreezesThePrefixThatIsNearestToItsPart) {
  JobShape shape{8, 1000};
  shape.step_shares = {0.02, 0.097, 0.094, 0.098, 0.097, 0.096, 0.094, 0.1};
  const auto policy = MakePolicy(kConfig, shape).value();
  EXPECT_EQ(policy->Observe({.step = 8}).value_or(Decision()).frozen_prefix, 4);
  EXPECT_EQ(policy->Observe({.step = 500}).value_or(Decision()).frozen_prefix, 5);
  EXPECT_EQ(policy->Observe({.step = 750}).value_or(Decision()).frozen_prefix, 6);
}

TEST(FinetunePolicy, TheNearestPrefixIsTheSmallerOneOfTwo) {
  const std::vector<double> shares = {0.2, 0.2, 0.2, 0.4};
  EXPECT_EQ(PrefixNearestTo(0.3, shares), 1);
  EXPECT_EQ(PrefixNearestTo(0.31, shares), 2);
  EXPECT_EQ(PrefixNearestTo(0.0, shares), 1);
  EXPECT_EQ(PrefixNearestTo(0.9, shares), 3) << "the last module never freezes";
}

TEST(FinetunePolicy, AStageSaysWhatIsStillToCome) {
  const auto policy = MakeFrozen();
  EXPECT_EQ(policy->awaited_step(), 734) << "a third of what is left is nearer to none than to a module";
  EXPECT_EQ(policy->Observe({.step = 760}).value_or(Decision()).reason,
            "4 of 5 modules: 40.0 % of a step's time, with 6.2 % of the area under the learning rates to come");
  EXPECT_FALSE(policy->awaited_step()) << "the last module never freezes";
}

TEST(FinetunePolicy, WaitsForAFifthOfAShortTrainingAtMost) {
  EXPECT_EQ(MakePolicy(kConfig, JobShape{4, 25}).value()->awaited_step(), 5);
  EXPECT_EQ(MakePolicy(kConfig, JobShape{4, 40}).value()->awaited_step(), 8);
  EXPECT_EQ(MakePolicy(kConfig, JobShape{4, 3000}).value()->awaited_step(), 8);
  EXPECT_EQ(MakePolicy(kConfig, JobShape{4, 100'000}).value()->awaited_step(), 8);
}

TEST(FinetunePolicy, WaitsForSomeStepsOfATrainingThatBecomesKnownUnderWay) {
  JobShape shape{4, 3000};
  for (const auto& [known, decided] : {std::pair(2, 8), {4, 8}, {7, 11}, {900, 904}}) {
    shape.first_step = known;
    EXPECT_EQ(MakePolicy(kConfig, shape).value()->awaited_step(), decided);
  }
}

TEST(FinetunePolicy, KeepsToTheJobsBudgetWhereThatIsLess) {
  JobShape shape = ShapeOf(1000);
  shape.budget = 0.2;
  EXPECT_EQ(MakePolicy(kConfig, shape).value()->Observe({.step = 8}).value_or(Decision()).frozen_prefix, 2);
}

TEST(FinetunePolicy, FreezesAnewWhereTrainingBeginsAnewBeforeTheDecision) {
  const auto policy = MakeFrozen();
  EXPECT_TRUE(policy->Observe({.step = 800}));
  policy->Adopt(6, 0);
  EXPECT_FALSE(policy->Observe({.step = 7}));
  EXPECT_EQ(policy->Observe({.step = 8}).value_or(Decision()).frozen_prefix, 3);
  EXPECT_EQ(policy->Observe({.step = 750}).value_or(Decision()).frozen_prefix, 4);
  policy->Adopt(300, 3);
  EXPECT_EQ(policy->Observe({.step = 900}).value_or(Decision()).frozen_prefix, 4);
  policy->Adopt(8, 0);
  EXPECT_EQ(policy->Observe({.step = 8}).value_or(Decision()).frozen_prefix, 3) << "no rank had applied it";
}

TEST(FinetunePolicy, GoesOnFromWhatIsFrozenAlready) {
  const auto policy = MakePolicy(kConfig, ShapeOf(1000)).value();
  policy->Adopt(0, 3);
  EXPECT_FALSE(policy->Observe({.step = 100}));
  EXPECT_EQ(policy->Observe({.step = 750}).value_or(Decision()).frozen_prefix, 4);
}

TEST(FinetunePolicy, FreezesNothingMoreWhereSomebodyElseHasThawed) {
  const auto policy = MakeFrozen();
  policy->Adopt(50, 1);
  EXPECT_FALSE(policy->Observe({.step = 900}));
  EXPECT_EQ(policy->frozen_prefix(), 1);
}

}  // namespace
}  // namespace egeria::policy
