#include "common/policy/bootstrapping.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

TEST(Bootstrapping, EndsAtTheEarliestAfterSixIntervals) {
  Bootstrapping stage(10);
  for (int64_t step = 1; step < 60; ++step) EXPECT_FALSE(stage.Observe(step, 2.0)) << step;
  EXPECT_TRUE(stage.Observe(60, 2.0));
  EXPECT_TRUE(stage.over());
}

TEST(Bootstrapping, ComparesTheMeansOfTheTwoHalves) {
  // 3n = 3 steps a half: 10, 10, 10 | 9, 9, 9 differs by just 10 %, which is not under 10 %.
  Bootstrapping at_limit(1);
  Bootstrapping under(1);
  for (int64_t step = 0; step < 6; ++step) {
    EXPECT_FALSE(at_limit.Observe(step, step < 3 ? 10 : 9));
    EXPECT_EQ(under.Observe(step, step < 3 ? 10 : 9.01), step == 5);
  }
}

TEST(Bootstrapping, LastsWhileTheLossFallsAndEndsWhenItFlattens) {
  Bootstrapping stage(5);
  int64_t ended = -1;
  for (int64_t step = 0; step < 1000 && ended < 0; ++step) {
    if (stage.Observe(step, std::exp(-static_cast<double>(step) / 40) + 0.2)) ended = step;
  }
  // The means of 15 steps differ by under 10 % once 0.2 dominates.
  EXPECT_GT(ended, 60);
  EXPECT_LT(ended, 200);
}

TEST(Bootstrapping, LastsWhileTheLossRises) {
  Bootstrapping stage(2);
  for (int64_t step = 0; step < 200; ++step) EXPECT_FALSE(stage.Observe(step, std::pow(1.05, step))) << step;
}

TEST(Bootstrapping, NeedsLossesInBothHalves) {
  Bootstrapping stage(10);
  EXPECT_FALSE(stage.Observe(0, 1));
  EXPECT_FALSE(stage.Observe(1'000'000, 1));
  EXPECT_FALSE(stage.Observe(1'000'020, 1));
  EXPECT_TRUE(stage.Observe(1'000'040, 1));
}

TEST(Bootstrapping, TakesLossesThatAreNegativeOrZero) {
  Bootstrapping negative(1), rising(1), zero(1);
  for (int64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(negative.Observe(step, step < 3 ? -10 : -10.5), step == 5);
    EXPECT_FALSE(rising.Observe(step, step < 3 ? -10 : -8));
    EXPECT_EQ(zero.Observe(step, 0), step == 5);
  }
}

TEST(Bootstrapping, IgnoresLossesOfOlderSteps) {
  Bootstrapping stage(1);
  for (int64_t step = 0; step < 5; ++step) stage.Observe(step, 1);
  EXPECT_FALSE(stage.Observe(3, 1e9));
  EXPECT_TRUE(stage.Observe(5, 1));
}

TEST(Bootstrapping, AveragesSeveralLossesOfOneStep) {
  Bootstrapping stage(1);
  for (int64_t step = 0; step < 3; ++step) stage.Observe(step, 1);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(stage.Observe(3, i % 2 == 0 ? 0.5 : 1.5));
  EXPECT_FALSE(stage.Observe(4, 1));
  EXPECT_TRUE(stage.Observe(5, 1));
}

TEST(Bootstrapping, WorksAtHugeSteps) {
  Bootstrapping stage(100'000);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(stage.Observe(0, 1));
  EXPECT_FALSE(stage.Observe(most - 400'000, 1));
  EXPECT_TRUE(stage.Observe(most, 1));
}

TEST(Bootstrapping, StartsAnewWhenRestarted) {
  Bootstrapping stage(1);
  for (int64_t step = 100; step < 105; ++step) stage.Observe(step, 1);
  stage.Restart();
  for (int64_t step = 50; step < 55; ++step) EXPECT_FALSE(stage.Observe(step, 1));
  EXPECT_TRUE(stage.Observe(55, 1));
}

TEST(Bootstrapping, WithoutLossesEndsSixIntervalsAfterTheJobsFirstStep) {
  Bootstrapping stage = Bootstrapping::WithoutLosses(10, 500);
  EXPECT_FALSE(stage.wants_loss());
  EXPECT_EQ(stage.awaited_step(), 560);
  stage.Pass(559);
  EXPECT_FALSE(stage.over());
  stage.Pass(560);
  EXPECT_TRUE(stage.over());
  EXPECT_FALSE(stage.awaited_step().has_value());
  stage.Pass(0);
  EXPECT_TRUE(stage.over()) << "once ended it stays ended";
}

// The first step of a job has the first loss, so that the earliest end is the same with losses and without.
TEST(Bootstrapping, WithoutLossesEndsWhenConstantLossesWouldEndIt) {
  Bootstrapping blind = Bootstrapping::WithoutLosses(7, 0), seeing(7);
  for (int64_t step = 1; step <= 100; ++step) {
    blind.Pass(step);
    EXPECT_EQ(seeing.Observe(step, 2.0), blind.over()) << step;
  }
}

TEST(Bootstrapping, WithoutLossesIgnoresLossesThatComeAllTheSame) {
  Bootstrapping stage = Bootstrapping::WithoutLosses(1, 100);
  for (int64_t step = 0; step < 50; ++step) EXPECT_FALSE(stage.Observe(step, 1));
}

TEST(Bootstrapping, WithLossesIsNotEndedByThePassingOfSteps) {
  Bootstrapping stage(1);
  stage.Pass(1'000'000);
  EXPECT_FALSE(stage.over());
  EXPECT_FALSE(stage.awaited_step().has_value());
}

TEST(Bootstrapping, WithoutLossesWorksAtHugeSteps) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  Bootstrapping stage = Bootstrapping::WithoutLosses(100'000, most - 10);
  EXPECT_EQ(stage.awaited_step(), most);
  stage.Pass(most - 1);
  EXPECT_FALSE(stage.over());
}

}  // namespace
}  // namespace egeria::policy
