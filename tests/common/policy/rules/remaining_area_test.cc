#include "common/policy/rules/remaining_area.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

JobShape Shape(const std::vector<double>& planned, int64_t total_steps) {
  JobShape shape;
  shape.planned_learning_rates = planned;
  shape.total_steps = total_steps;
  return shape;
}

TEST(RemainingArea, IsThatOfThePlan) {
  const RemainingArea linear(Shape({1, 0}, 1000));
  EXPECT_DOUBLE_EQ(linear.After(0).value(), 1);
  EXPECT_DOUBLE_EQ(linear.After(500).value(), 0.25);
  EXPECT_NEAR(linear.After(900).value(), 0.01, 1e-12);
  EXPECT_EQ(linear.After(1000), 0);
  EXPECT_EQ(linear.After(2000), 0);
  EXPECT_EQ(linear.StepWith(0.01), 900);
  EXPECT_EQ(linear.StepWith(1), 0);

  const RemainingArea drop(Shape({1, 1, 1, 0.1, 0.1}, 400));  // 1 + 1 + .55 + .1
  EXPECT_NEAR(drop.After(300).value(), 0.1 / 2.65, 1e-12);
  EXPECT_NEAR(drop.After(350).value(), 0.05 / 2.65, 1e-12);
}

TEST(RemainingArea, OfAPlanDoesNotMindWhatIsObserved) {
  RemainingArea linear(Shape({1, 0}, 1000));
  linear.Observe(500, 7);
  EXPECT_DOUBLE_EQ(linear.After(500).value(), 0.25);
}

TEST(RemainingArea, WithoutAPlanIsABoundByThePresentRate) {
  for (const std::vector<double>& none :
       {std::vector<double>{}, {0.1}, {0, 0}, {0.1, -1}, {0.1, std::numeric_limits<double>::quiet_NaN()}}) {
    RemainingArea area(Shape(none, 1000));
    EXPECT_FALSE(area.After(10));
    EXPECT_FALSE(area.StepWith(0.01));
    area.Observe(100, 1);
    EXPECT_DOUBLE_EQ(area.After(100).value(), 0.9) << "as if it had been so from the beginning";
    area.Observe(600, 0.1);
    EXPECT_DOUBLE_EQ(area.After(600).value(), 40.0 / 640);
    EXPECT_DOUBLE_EQ(area.After(800).value(), 20.0 / 640) << "and goes on so";
    area.Observe(800, 0);
    EXPECT_EQ(area.After(800), 0);
    area.Observe(400, 1);  // goes on from an older step
    EXPECT_NEAR(area.After(400).value(), 600.0 / (600 + 310), 1e-12);
  }
}

TEST(RemainingArea, KnowsWhatWasBeforeTheJob) {
  JobShape shape = Shape({}, 1000);
  shape.first_step = 600;
  shape.mean_rate_before = 1;
  RemainingArea area(shape);
  area.Observe(602, 0.1);
  EXPECT_NEAR(area.After(602).value(), 39.8 / (602 + 39.8), 1e-12);
  shape.planned_learning_rates = {1, 0};
  EXPECT_DOUBLE_EQ(RemainingArea(shape).After(900).value(), RemainingArea(Shape({1, 0}, 1000)).After(900).value());
}

TEST(RemainingArea, OfAnUnknownTotalIsUnknown) {
  RemainingArea area(Shape({1, 0}, 0));
  area.Observe(10, 1);
  EXPECT_FALSE(area.After(10));
  EXPECT_FALSE(area.StepWith(0.01));
}

}  // namespace
}  // namespace egeria::policy
