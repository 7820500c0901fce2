#include "common/policy/rules/late_clock.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

JobShape Shape(std::vector<double> planned_learning_rates = {}) {
  JobShape shape;
  shape.modules = 4;
  shape.total_steps = 1000;
  shape.planned_learning_rates = std::move(planned_learning_rates);
  return shape;
}

TEST(LateClock, StartsWhereThePlanLeavesTheGivenPartOfTheArea) {
  EXPECT_DOUBLE_EQ(LateClock(0.01, Shape({1, 0})).StartOf(0.82), 0.9) << "(1 - .9)^2 = 1 %";
  EXPECT_DOUBLE_EQ(LateClock(0.04, Shape({1, 0})).StartOf(0.82), 0.82) << "not before the start";
  EXPECT_DOUBLE_EQ(LateClock(0.01, Shape()).StartOf(0.82), 0.82) << "nothing is planned";
}

TEST(LateClock, LetsAllFreezeWhenLittleIsLeft) {
  const LateClock clock(0.01, Shape({1, 0}));
  EXPECT_THAT(clock.TooMuchLeft(890, 0).value_or(""), HasSubstr("1.21 % of the area under the learning rates is still "
                                                                "to come, over 1 %"));
  EXPECT_FALSE(clock.TooMuchLeft(900, 0));
  EXPECT_FALSE(clock.TooMuchLeft(1000, 0));
}

TEST(LateClock, HasOnlyTheRestOfWhatMayBeGivenUp) {
  const LateClock clock(0.01, Shape({1, 0}));
  EXPECT_THAT(clock.TooMuchLeft(900, 0.0075).value_or(""), HasSubstr("over 0.25 %"));
  EXPECT_FALSE(clock.TooMuchLeft(950, 0.0075)) << "(1 - .95)^2 = .25 %";
}

TEST(LateClock, NeverLetsFreezeWhereRatesStayHigh) {
  const LateClock clock(0.01, Shape({1, 1}));
  EXPECT_THAT(clock.TooMuchLeft(995, 0).value_or(""), HasSubstr("on average 1 times those of the whole training"));
}

TEST(LateClock, GoesByTheRatesThatItObservesWhereNothingIsPlanned) {
  LateClock clock(0.01, Shape());
  EXPECT_FALSE(clock.KnowsLeft(0));
  EXPECT_FALSE(clock.TooMuchLeft(500, 0)) << "nothing is known of the rates";
  clock.ObserveRate(0, 1);
  EXPECT_DOUBLE_EQ(clock.Left(500), 0.5);
  EXPECT_TRUE(clock.TooMuchLeft(500, 0));
  clock.ObserveRate(500, 0.01);
  EXPECT_NEAR(clock.Left(500), 0.01, 1e-3);
  EXPECT_FALSE(clock.TooMuchLeft(510, 0));
}

TEST(LateClock, TellsTheMeanOfTheRatesToCome) {
  const LateClock clock(0.01, Shape({1, 0}));
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(0), 1);
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(500), 0.5);
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(1000), 0);
}

}  // namespace
}  // namespace egeria::policy
