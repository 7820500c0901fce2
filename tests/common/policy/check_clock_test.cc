#include "common/policy/check_clock.h"

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

TEST(CheckClock, StartsAtItsPartOfTheStepsAndGoesOnByPeriods) {
  CheckClock clock(0.4, 0.025, 4, 1000);
  EXPECT_EQ(clock.next(), 400);
  EXPECT_FALSE(clock.IsDue(399));
  EXPECT_TRUE(clock.IsDue(400));
  clock.Passed(403);
  EXPECT_EQ(clock.next(), 425) << "the grid does not shift with late observations";
  clock.Undecided(425);
  EXPECT_EQ(clock.next(), 450);
}

TEST(CheckClock, WaitsTwiceAsLongAfterEachRefusal) {
  CheckClock clock(0.4, 0.025, 4, 1000);
  clock.Refused(400);
  EXPECT_EQ(clock.next(), 450);
  clock.Refused(450);
  EXPECT_EQ(clock.next(), 550);
  clock.Refused(550);
  EXPECT_EQ(clock.next(), 650) << "four periods at most";
  clock.Passed(650);
  clock.Refused(675);
  EXPECT_EQ(clock.next(), 725) << "counts anew after a freeze";
}

TEST(CheckClock, LooksSoonAgainWhenThingsHaveChanged) {
  CheckClock clock(0.4, 0.025, 4, 1000);
  clock.Refused(400);
  clock.Refused(450);
  clock.StartOver(460);
  EXPECT_EQ(clock.next(), 475);
  clock.Refused(475);
  EXPECT_EQ(clock.next(), 525);
}

TEST(CheckClock, IsNotMovedBeforeItsStart) {
  CheckClock clock(0.4, 0.025, 4, 1000);
  clock.Refused(100);
  EXPECT_EQ(clock.next(), 400);
  clock.StartOver(200);
  EXPECT_EQ(clock.next(), 400);
  clock.Passed(700);
  clock.GoBack(300);
  EXPECT_EQ(clock.next(), 400);
}

TEST(CheckClock, OfAnUnknownTotalWaitsForAHundredthOfThePeakRate) {
  CheckClock clock(0.4, 0.025, 4, 0);
  clock.ObserveRate(0, 0.001);  // warm-up
  clock.Refused(5);             // of account to nobody yet
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

}  // namespace
}  // namespace egeria::policy
