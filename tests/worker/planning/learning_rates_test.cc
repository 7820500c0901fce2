#include "worker/planning/learning_rates.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using Rates = std::vector<double>;
using Groups = LearningRates::ModuleGroups;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int ZeroLrPrefix(const Rates& rates, const Groups& groups) {
  return LearningRates().ZeroLrPrefix(rates, [&groups] { return groups; });
}

TEST(LearningRates, ModulesOfRateZeroCountFromTheFrontOn) {
  const Groups each = {{0}, {1}, {2}, {3}};
  EXPECT_EQ(ZeroLrPrefix({0.1, 0.1, 0.1, 0.1}, each), 0);
  EXPECT_EQ(ZeroLrPrefix({0, 0, 0.1, 0.1}, each), 2);
  EXPECT_EQ(ZeroLrPrefix({0, 0.1, 0, 0.1}, each), 1);
  EXPECT_EQ(ZeroLrPrefix({0, 0.1}, {{0}, {0, 1}, {0}, {1}}), 1) << "a parameter of the second one learns";
  EXPECT_EQ(ZeroLrPrefix({0, 0.1}, {{0}, {0}, {0}}), 2) << "the last one never freezes";
}

TEST(LearningRates, ModulesInNoOptimizerAreTheirOwnersBusiness) {
  EXPECT_EQ(ZeroLrPrefix({0.1}, {{}, {}, {0}, {0}}), 0);
  EXPECT_EQ(ZeroLrPrefix({0, 0.1}, {{}, {0}, {}, {1}}), 2);
}

TEST(LearningRates, WhereNoRateIsOverZeroTheCountIsTheOneBefore) {
  LearningRates rates;
  const auto groups = [] { return Groups{{0}, {1}, {1}}; };
  EXPECT_EQ(rates.ZeroLrPrefix(Rates{0, 0}, groups), 0) << "at the beginning of a warm-up";
  EXPECT_EQ(rates.ZeroLrPrefix(Rates{0, 0.1}, groups), 1);
  EXPECT_EQ(rates.ZeroLrPrefix(Rates{0, 0}, groups), 1) << "at the end of a schedule";
  EXPECT_EQ(rates.ZeroLrPrefix(Rates{0.1, 0.1}, groups), 0);
}

TEST(LearningRates, CountsAnewOnlyWhereSomethingHasChanged) {
  LearningRates rates;
  int counted = 0;
  const auto groups = [&counted] { return ++counted, Groups{{0}, {1}, {1}}; };
  for (int step = 0; step < 3; ++step) EXPECT_EQ(rates.ZeroLrPrefix(Rates{0, 0.1}, groups), 1);
  EXPECT_EQ(counted, 1);
  rates.ForgetModules();
  EXPECT_EQ(rates.ZeroLrPrefix(Rates{0, 0.1}, groups), 1);
  EXPECT_EQ(counted, 2);
}

TEST(LearningRates, SumsTheRateOfTheFirstGroupThatHasLearnedAsLongAsItDoes) {
  LearningRates rates;
  rates.EndStep(Rates{0, 0.5, 0.25});
  rates.EndStep(Rates{4, 0.5, 0.25});  // the second group learns still
  EXPECT_EQ(rates.sum(), 1.0);
  rates.EndStep(Rates{4, 0, 0.25});
  rates.EndStep(Rates{4, 0.5, 0.25});
  EXPECT_EQ(rates.sum(), 9.0);
  rates.EndStep(Rates{0, 0, 0});
  rates.EndStep(Rates{kInfinity, 0, 0});
  EXPECT_EQ(rates.MeanOver(6), 1.5);
  EXPECT_EQ(rates.MeanOver(0), 0);
}

TEST(LearningRates, WhatACheckpointDoesNotTellStaysUnknown) {
  LearningRates rates(std::nullopt);
  rates.EndStep(Rates{0.5});
  EXPECT_EQ(rates.sum(), std::nullopt);
  EXPECT_EQ(rates.MeanOver(4), 0);
  LearningRates resumed(3.0);
  resumed.EndStep(Rates{1});
  EXPECT_EQ(resumed.MeanOver(4), 1);
}

}  // namespace
}  // namespace egeria::worker
