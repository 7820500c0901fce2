#include "common/policy/rules/early_prefix.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

JobShape EarlyShape() {
  JobShape shape;
  shape.modules = 4;
  shape.total_steps = 1000;
  shape.step_shares = {0.3, 0.1, 0.1, 0.1};  // module 0 has half of their sum, the others a sixth each
  for (int point = 0; point <= 100; ++point) shape.planned_learning_rates.push_back(1 - point / 100.0);
  return shape;
}

GradientReading ReadingOf(std::vector<double> progress, int first_module = 0) {
  GradientReading reading;
  reading.first_module = first_module;
  reading.parts = 2;
  reading.progress = std::move(progress);
  return reading;
}

EarlyPrefix With(const std::vector<double>& progress, const JobShape& shape = EarlyShape(), double max_share = 0.25) {
  EarlyPrefix early(max_share, 0.01, shape);
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf(progress));
  return early;
}

TEST(EarlyPrefix, FindWhatTakesTimeAndLearnsLittle) {
  const EarlyPrefix early = With({0.05, 0.3, 0.3, 0.35});
  const auto found = early.Look(0, 3, /*left=*/0.4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->prefix, 1) << "the next module makes too much of the progress";
  EXPECT_NEAR(found->given_up, 0.4 * 0.05 * 0.4, 1e-9);
  EXPECT_THAT(found->reason,
              HasSubstr("modules 0 to 0 take 50 % of the time and make 5 % (5..5) of the progress, of which "
                        "40 % are still to come"));
  EXPECT_FALSE(early.Look(0, 3, 0.6)) << "too much is to come: .4 * .05 * .6 is over 1 %";
}

TEST(EarlyPrefix, FindTheDeepestPrefix) {
  const auto found = With({0.01, 0.01, 0.01, 0.97}).Look(0, 3, 0.5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->prefix, 3);
  EXPECT_EQ(With({0.01, 0.01, 0.01, 0.97}).Look(0, 2, 0.5)->prefix, 2) << "no deeper than asked";
}

TEST(EarlyPrefix, LeaveWhatIsNotWorthTheTime) {
  JobShape shape = EarlyShape();
  shape.step_shares = {0.05, 0.19, 0.18, 0.18};
  EXPECT_FALSE(With({0.02, 0.3, 0.3, 0.38}, shape).Look(0, 1, 0.1))
      << "a twelfth of the time: a switch is not worth it";
  shape.step_shares = {0.12, 0.16, 0.16, 0.16};
  EXPECT_TRUE(With({0.12, 0.3, 0.28, 0.3}, shape).Look(0, 1, 0.1)) << ".4 * .12 under a quarter of .2";
  EXPECT_FALSE(With({0.13, 0.3, 0.27, 0.3}, shape).Look(0, 1, 0.1));
}

TEST(EarlyPrefix, GiveUpNoMoreThanTheClockInAll) {
  EarlyPrefix early = With({0.05, 0.3, 0.3, 0.35});
  early.Book(*early.Look(0, 1, 0.4));
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf({0.05, 0.45, 0.5}, 1));
  EXPECT_FALSE(early.Look(1, 3, 0.4)) << ".8 % was given up before";
  EXPECT_TRUE(early.Look(1, 3, 0.1)) << ".2 % more";
  EXPECT_DOUBLE_EQ(early.given_up(), 0.4 * 0.05 * 0.4);
  early.OnPrefix();
  EXPECT_DOUBLE_EQ(early.given_up(), 0.4 * 0.05 * 0.4) << "what was given up stays so";
}

TEST(EarlyPrefix, NeedReadingsOfWhatIsActive) {
  EarlyPrefix early(0.25, 0.01, EarlyShape());
  for (int i = 0; i < 19; ++i) early.Add(ReadingOf({0.01, 0.3, 0.3, 0.35}));
  EXPECT_FALSE(early.Look(0, 3, 0.1)) << "19 of 20";
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf({0.3, 0.3, 0.35}, 1));
  EXPECT_FALSE(early.Look(0, 3, 0.1)) << "of modules behind the first";
}

TEST(EarlyPrefix, OfLookupTablesNeedNoReadings) {
  JobShape shape = EarlyShape();
  shape.embedding_prefix = 1;
  EarlyPrefix early(0.25, 0.01, shape);
  const auto found = early.Look(0, 3, 0.4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->prefix, 1);
  EXPECT_NEAR(found->given_up, 0.4 * 0.05 * 0.4, 1e-9);
  EXPECT_THAT(found->reason,
              HasSubstr("modules 0 to 0 take 50 % of the time and are lookup tables, which make little of the "
                        "progress, of which 40 % are still to come"));
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf({0.4, 0.2, 0.2, 0.2}));
  EXPECT_FALSE(early.Look(0, 3, 0.1)) << "readings that are clear count for more";
  early.OnRateChange(/*fell=*/false);
  EXPECT_FALSE(early.Look(0, 3, 0.1)) << "where readings come it waits for them";
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf({i % 2 == 0 ? 1.0 : -1.0, 0, 0, 0}));
  EXPECT_TRUE(early.Look(0, 3, 0.1)) << "and those that are not, for nothing";
  shape.step_shares = {0.04, 0.18, 0.18, 0.2};
  EXPECT_FALSE(EarlyPrefix(0.25, 0.01, shape).Look(0, 3, 0.1)) << "too little of the time";
}

TEST(EarlyPrefix, DoubtIsAReasonAgainst) {
  EarlyPrefix early(0.25, 0.01, EarlyShape());
  for (int i = 0; i < 20; ++i) early.Add(ReadingOf({i % 2 == 0 ? 0.5 : -0.4, 0.3, 0.3, 0.35}));
  EXPECT_FALSE(early.Look(0, 1, 0.2)) << ".05 on average, of 1, but the upper end is over .2";
}

TEST(EarlyPrefix, IsPossibleWhereRatesFallSmoothlyAndTimesAreKnown) {
  EXPECT_TRUE(EarlyPrefix(0.25, 0.01, EarlyShape()).IsTime(900, 0.1));
  EXPECT_FALSE(EarlyPrefix(0, 0.01, EarlyShape()).IsTime(900, 0.1)) << "switched off";
  JobShape shape = EarlyShape();
  shape.total_steps = 0;
  EXPECT_FALSE(EarlyPrefix(0.25, 0.01, shape).IsTime(900, 0.1));
  shape = EarlyShape();
  shape.step_shares.clear();
  EXPECT_FALSE(EarlyPrefix(0.25, 0.01, shape).IsTime(900, 0.1));
  shape = EarlyShape();
  shape.planned_learning_rates.clear();
  EXPECT_FALSE(EarlyPrefix(0.25, 0.01, shape).IsTime(900, 0.1));
  for (int point = 0; point <= 100; ++point) shape.planned_learning_rates.push_back(point < 50 ? 0.1 : 0.01);
  EXPECT_FALSE(EarlyPrefix(0.25, 0.01, shape).IsTime(900, 0.1))
      << "a sudden drop, behind which progress says too little";
  shape.planned_learning_rates = {1, 0};
  EXPECT_TRUE(EarlyPrefix(0.25, 0.01, shape).IsTime(900, 0.1)) << "a straight line";
}

TEST(EarlyPrefix, WaitsUntilRatesHaveFallenAndTwoFifthsOfTheStepsAreDone) {
  EarlyPrefix early(0.25, 0.01, EarlyShape());
  EXPECT_EQ(early.first_step(), 400);
  EXPECT_FALSE(early.IsTime(399, 0.5));
  EXPECT_TRUE(early.IsTime(400, 0.75));
  EXPECT_FALSE(early.IsTime(400, 0.76));
  early.OnRateChange(/*fell=*/true);
  EXPECT_FALSE(early.IsTime(500, 0.5)) << "behind a sudden drop progress says too little";
  early.GoBack();
  EXPECT_TRUE(early.IsTime(500, 0.5));
}

}  // namespace
}  // namespace egeria::policy
