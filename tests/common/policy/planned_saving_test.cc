#include "common/policy/planned_saving.h"

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

JobShape ShapeOf(int64_t total_steps) {
  JobShape shape{4, total_steps};
  shape.step_shares = {0.2, 0.2, 0.2, 0.4};
  return shape;
}

TEST(PlannedSaving, IsThatOfTheClock) {
  const ScheduleConfig schedule{{{0.5, 1}, {0.75, 3}}};
  EXPECT_NEAR(PlannedSaving(schedule, ShapeOf(1000)).value(), 0.25 * 0.2 + 0.25 * 0.6, 1e-9);
  EXPECT_NEAR(PlannedSaving(schedule, ShapeOf(5'000'000)).value(), 0.25 * 0.2 + 0.25 * 0.6, 1e-3);
  EXPECT_NEAR(PlannedSaving(FinetuneConfig{.budget = 0.4, .stages = 1}, ShapeOf(1000)).value(), 0.992 * 0.4, 1e-9);
  EXPECT_NEAR(PlannedSaving(FinetuneConfig{.budget = 0.4}, ShapeOf(1000)).value(), 0.992 * 0.4 + 0.266 * 0.2, 1e-9);
  // Three stages come at 80, 85 and 90 %, with 3/5, 4/5 and all of the 0.6 that three modules take.
  EXPECT_NEAR(PlannedSaving(StagedConfig{}, ShapeOf(1000)).value(), 0.05 * 0.4 + 0.05 * 0.6 + 0.1 * 0.6, 1e-9);
  EXPECT_NEAR(PlannedSaving(AutoConfig{}, ShapeOf(1000)).value(), 0.18 * 0.6, 1e-9);
  JobShape linear = ShapeOf(1000);
  linear.planned_learning_rates = {1, 0};
  EXPECT_NEAR(PlannedSaving(AutoConfig{}, linear).value(), 0.1 * 0.6, 1e-9) << "1 % of the area is left at 90 %";
}

TEST(PlannedSaving, IsThatOfTheWholeTrainingAfterAResumeToo) {
  JobShape resumed = ShapeOf(1000);
  resumed.budget = 0.1;
  const double whole = PlannedSaving(StagedConfig{}, resumed).value();
  resumed.first_step = 850;
  resumed.saved_before = 0.02;
  EXPECT_DOUBLE_EQ(PlannedSaving(StagedConfig{}, resumed).value(), whole);
}

TEST(PlannedSaving, IsNothingWhereMeasurementsDecide) {
  EXPECT_EQ(PlannedSaving(SnrConfig{}, ShapeOf(1000)).value(), 0);
  EXPECT_EQ(PlannedSaving(PlasticityConfig{}, ShapeOf(1000)).value(), 0);
  EXPECT_EQ(PlannedSaving(NoneConfig{}, ShapeOf(1000)).value(), 0);
}

TEST(PlannedSaving, GoesNoFurtherThanTheBudget) {
  JobShape shape = ShapeOf(1000);
  shape.budget = 0.1;
  EXPECT_NEAR(PlannedSaving(ScheduleConfig{{{0.5, 3}}}, shape).value(), 0.1, 1e-9);  // one module for half the time
}

TEST(PlannedSaving, NeedsTheNumberOfSteps) {
  EXPECT_NE(PlannedSaving(NoneConfig{}, ShapeOf(0)).status().message().find("total_steps"), std::string_view::npos);
}

}  // namespace
}  // namespace egeria::policy
