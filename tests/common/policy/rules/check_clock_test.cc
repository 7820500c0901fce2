#include "common/policy/rules/check_clock.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

TEST(CheckClock, StartsAtItsPartOfTheStepsAndGoesOnByPeriods) {
  CheckClock clock(0.4, 0.025, 1000);
  EXPECT_EQ(clock.next(), 400);
  EXPECT_FALSE(clock.IsDue(399));
  EXPECT_TRUE(clock.IsDue(400));
  clock.MoveOn(403);
  EXPECT_EQ(clock.next(), 425) << "the grid does not shift with late observations";
  clock.MoveOn(425);
  EXPECT_EQ(clock.next(), 450);
}

TEST(CheckClock, WaitsAPeriodMoreWhereACheckIsPutOff) {
  CheckClock clock(0.4, 0.025, 1000);
  clock.PutOff(400);
  EXPECT_EQ(clock.next(), 450);
  clock.PutOff(455);
  EXPECT_EQ(clock.next(), 500);
}

TEST(CheckClock, LooksSoonAgainWhenThingsHaveChanged) {
  CheckClock clock(0.4, 0.025, 1000);
  clock.PutOff(460);
  EXPECT_EQ(clock.next(), 500);
  clock.StartOver(460);
  EXPECT_EQ(clock.next(), 475);
  clock.PutOff(475);
  EXPECT_EQ(clock.next(), 525);
}

TEST(CheckClock, IsNotMovedBeforeItsStart) {
  CheckClock clock(0.4, 0.025, 1000);
  clock.PutOff(100);
  EXPECT_EQ(clock.next(), 400);
  clock.StartOver(200);
  EXPECT_EQ(clock.next(), 400);
  clock.MoveOn(700);
  clock.MoveOn(300);
  EXPECT_EQ(clock.next(), 400);
}

TEST(CheckClock, OfAnUnknownTotalWaitsForAHundredthOfThePeakRate) {
  CheckClock clock(0.4, 0.025, 0);
  clock.ObserveRate(0, 0.001);  // warm-up
  clock.PutOff(5);              // there is no clock yet
  clock.ObserveRate(100, 0.1);
  EXPECT_FALSE(clock.next());
  clock.ObserveRate(400, 0.1 * 0.1);
  EXPECT_FALSE(clock.next());
  clock.ObserveRate(1600, 0.1 * 0.1 * 0.1);  // a little over .001 in floating point
  EXPECT_EQ(clock.next(), 1600);
  EXPECT_EQ(clock.period(), 100) << "1600 stands for 40 %";
  clock.ObserveRate(1650, 0.05);
  EXPECT_FALSE(clock.IsDue(1700)) << "the rate is high again";
  clock.ObserveRate(1900, 0.0005);
  EXPECT_TRUE(clock.IsDue(1900));
}

TEST(CheckClock, SaysWhyItIsTooEarly) {
  CheckClock clock(0.4, 0.025, 1000);
  EXPECT_THAT(clock.TooEarly(399).value_or(""), HasSubstr("step 399 of 1000 is before 40 %"));
  EXPECT_FALSE(clock.TooEarly(400));
  CheckClock unknown(0.4, 0.025, 0);
  unknown.ObserveRate(0, 0.1);
  EXPECT_THAT(unknown.TooEarly(100).value_or(""), HasSubstr("0.1 has not fallen to a hundredth of its peak of 0.1"));
  unknown.ObserveRate(200, 0.001);
  EXPECT_FALSE(unknown.TooEarly(200));
}

}  // namespace
}  // namespace egeria::policy
