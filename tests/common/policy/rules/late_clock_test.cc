#include "common/policy/rules/late_clock.h"

#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

JobShape PlannedShape(std::vector<double> planned_learning_rates = {}) {
  JobShape shape;
  shape.modules = 4;
  shape.total_steps = 1000;
  shape.planned_learning_rates = std::move(planned_learning_rates);
  return shape;
}

TEST(LateClock, StartsWhereThePlanLeavesTheGivenPartOfTheArea) {
  EXPECT_DOUBLE_EQ(LateClock(0.01, PlannedShape({1, 0})).StartOf(0.82), 0.9) << "(1 - .9)^2 = 1 %";
  EXPECT_DOUBLE_EQ(LateClock(0.04, PlannedShape({1, 0})).StartOf(0.82), 0.82) << "not before the start";
  EXPECT_DOUBLE_EQ(LateClock(0.01, PlannedShape()).StartOf(0.82), 0.82) << "nothing is planned";
}

TEST(LateClock, LetsAllFreezeWhenLittleIsLeft) {
  const LateClock clock(0.01, PlannedShape({1, 0}));
  EXPECT_THAT(clock.TooMuchLeft(890, 0).value_or(""), HasSubstr("1.21 % of the area under the learning rates is still "
                                                                "to come, over 1 %"));
  EXPECT_FALSE(clock.TooMuchLeft(900, 0));
  EXPECT_FALSE(clock.TooMuchLeft(1000, 0));
}

TEST(LateClock, HasOnlyTheRestOfWhatMayBeGivenUp) {
  const LateClock clock(0.01, PlannedShape({1, 0}));
  EXPECT_THAT(clock.TooMuchLeft(900, 0.0075).value_or(""), HasSubstr("over 0.25 %"));
  EXPECT_FALSE(clock.TooMuchLeft(950, 0.0075)) << "(1 - .95)^2 = .25 %";
}

TEST(LateClock, NeverLetsFreezeWhereRatesStayHigh) {
  const LateClock clock(0.01, PlannedShape({1, 1}));
  EXPECT_THAT(clock.TooMuchLeft(995, 0).value_or(""), HasSubstr("on average 1 times those of the whole training"));
}

TEST(LateClock, GoesByTheRatesThatItObservesWhereNothingIsPlanned) {
  LateClock clock(0.01, PlannedShape());
  EXPECT_FALSE(clock.After(0));
  EXPECT_FALSE(clock.TooMuchLeft(500, 0)) << "nothing is known of the rates";
  clock.ObserveRate(0, 1);
  EXPECT_DOUBLE_EQ(clock.Left(500), 0.5);
  EXPECT_TRUE(clock.TooMuchLeft(500, 0));
  clock.ObserveRate(500, 0.01);
  EXPECT_NEAR(clock.Left(500), 0.01, 1e-3);
  EXPECT_FALSE(clock.TooMuchLeft(510, 0));
}

TEST(LateClock, TellsTheMeanOfTheRatesToCome) {
  const LateClock clock(0.01, PlannedShape({1, 0}));
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(0), 1);
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(500), 0.5);
  EXPECT_DOUBLE_EQ(clock.MeanRateToCome(1000), 0);
}

TEST(LateClock, KnowsThePartOfThePlanThatIsToCome) {
  const LateClock linear(0.01, PlannedShape({1, 0}));
  EXPECT_DOUBLE_EQ(linear.After(0).value(), 1);
  EXPECT_DOUBLE_EQ(linear.After(500).value(), 0.25);
  EXPECT_NEAR(linear.After(900).value(), 0.01, 1e-12);
  EXPECT_EQ(linear.After(1000), 0);
  EXPECT_EQ(linear.After(2000), 0);
  EXPECT_DOUBLE_EQ(linear.StartOf(0), 0.9);
  EXPECT_EQ(LateClock(1, PlannedShape({1, 0})).StartOf(0), 0);

  JobShape shape = PlannedShape({1, 1, 1, 0.1, 0.1});  // 1 + 1 + .55 + .1
  shape.total_steps = 400;
  const LateClock drop(0.01, shape);
  EXPECT_NEAR(drop.After(300).value(), 0.1 / 2.65, 1e-12);
  EXPECT_NEAR(drop.After(350).value(), 0.05 / 2.65, 1e-12);
}

TEST(LateClock, DoesNotMindWhatIsObservedWhereThereIsAPlan) {
  LateClock linear(0.01, PlannedShape({1, 0}));
  linear.ObserveRate(500, 7);
  EXPECT_DOUBLE_EQ(linear.After(500).value(), 0.25);
}

TEST(LateClock, BoundsThePartToComeByThePresentRateWithoutAPlan) {
  for (const std::vector<double>& none :
       {std::vector<double>{}, {0.1}, {0, 0}, {0.1, -1}, {0.1, std::numeric_limits<double>::quiet_NaN()}}) {
    LateClock area(0.01, PlannedShape(none));
    EXPECT_FALSE(area.After(10));
    EXPECT_EQ(area.StartOf(0), 0);
    area.ObserveRate(100, 1);
    EXPECT_DOUBLE_EQ(area.After(100).value(), 0.9) << "as if it had been so from the beginning";
    area.ObserveRate(600, 0.1);
    EXPECT_DOUBLE_EQ(area.After(600).value(), 40.0 / 640);
    EXPECT_DOUBLE_EQ(area.After(800).value(), 20.0 / 640) << "and goes on so";
    area.ObserveRate(800, 0);
    EXPECT_EQ(area.After(800), 0);
    area.ObserveRate(400, 1);  // goes on from an older step
    EXPECT_NEAR(area.After(400).value(), 600.0 / (600 + 310), 1e-12);
  }
}

TEST(LateClock, KnowsWhatWasBeforeTheJob) {
  JobShape shape = PlannedShape();
  shape.first_step = 600;
  shape.mean_rate_before = 1;
  LateClock area(0.01, shape);
  area.ObserveRate(602, 0.1);
  EXPECT_NEAR(area.After(602).value(), 39.8 / (602 + 39.8), 1e-12);
  shape.planned_learning_rates = {1, 0};
  EXPECT_DOUBLE_EQ(LateClock(0.01, shape).After(900).value(), LateClock(0.01, PlannedShape({1, 0})).After(900).value());
}

}  // namespace
}  // namespace egeria::policy
