#include "common/policy/rules/progress_shares.h"

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

GradientReading ProgressOf(std::vector<double> progress, int first_module = 0, int parts = 2) {
  GradientReading reading;
  reading.first_module = first_module;
  reading.parts = parts;
  reading.mean_of_squares.resize(progress.size(), 1);
  reading.square_of_mean.resize(progress.size(), 1);
  reading.progress = std::move(progress);
  return reading;
}

TEST(ProgressShares, AreSumsOverTheReadings) {
  ProgressShares shares(/*min_readings=*/3, /*max_readings=*/4);
  shares.Add(ProgressOf({1, 2, 7}));
  shares.Add(ProgressOf({3, 2, 5}));
  EXPECT_FALSE(shares.Before(1)) << "two readings of three";
  shares.Add(ProgressOf({2, 2, 6}));
  ASSERT_TRUE(shares.Before(1));
  EXPECT_DOUBLE_EQ(shares.Before(1)->value, 0.2);
  EXPECT_DOUBLE_EQ(shares.Before(2)->value, 0.4);
  EXPECT_DOUBLE_EQ(shares.Before(3)->value, 1);
  EXPECT_NEAR(shares.Before(2)->upper, 0.4 + 2.92 * std::sqrt(1.5 * 2) / 30, 1e-4) << "errors -1, 1, 0; two degrees";
  EXPECT_NEAR(shares.Before(2)->lower, 0.4 - 2.92 * std::sqrt(1.5 * 2) / 30, 1e-4);
  EXPECT_FALSE(shares.Before(0));
}

TEST(ProgressShares, KeepTheNewestReadings) {
  ProgressShares shares(2, 3);
  shares.Add(ProgressOf({100, 1}));
  for (int i = 0; i < 3; ++i) shares.Add(ProgressOf({1, 3}));
  EXPECT_EQ(shares.readings(), 3);
  EXPECT_DOUBLE_EQ(shares.Before(1)->value, 0.25);
  shares.Forget();
  EXPECT_EQ(shares.readings(), 0);
}

TEST(ProgressShares, AreUnknownWhileAllProgressMayBeNoise) {
  ProgressShares shares(4, 8);
  for (const double value : {1.0, -2.0, 3.0, -1.0}) shares.Add(ProgressOf({0.1 * value, value}));
  EXPECT_FALSE(shares.Before(1)) << "a mean of .25 with a standard error of 1.1";
}

TEST(ProgressShares, AreUnknownOfAnOptimizerThatIsNot) {
  ProgressShares shares(2, 4);
  GradientReading reading = ProgressOf({});
  reading.mean_of_squares = {8, 10};
  reading.square_of_mean = {3.5, 4};  // a clear signal, of which another metric may make anything
  shares.Add(reading);
  shares.Add(reading);
  EXPECT_EQ(shares.readings(), 0);
  EXPECT_FALSE(shares.Before(1));
}

TEST(ProgressShares, LeaveOutWhatSaysNothing) {
  ProgressShares shares(2, 4);
  shares.Add(ProgressOf({1, 1}, 0, /*parts=*/1));
  shares.Add(ProgressOf({std::numeric_limits<double>::quiet_NaN(), 1}));
  shares.Add(ProgressOf({std::numeric_limits<double>::infinity(), 1}));
  EXPECT_EQ(shares.readings(), 0);
  shares.Add(ProgressOf({1, 1, 1}));
  shares.Add(ProgressOf({1, 1}, /*first_module=*/1));
  EXPECT_EQ(shares.readings(), 1) << "something was frozen in between";
  EXPECT_EQ(shares.first_module(), 1);
}

// In about 90 % of 400 trainings in which a module makes a tenth of the progress, the interval must cover that.
TEST(ProgressShares, IntervalCoversTheTruth) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  int covered = 0;
  constexpr int kTrials = 400;
  for (int trial = 0; trial < kTrials; ++trial) {
    ProgressShares shares(20, 30);
    for (int i = 0; i < 30; ++i) shares.Add(ProgressOf({0.1 + 0.3 * normal(random), 0.9 + 0.8 * normal(random)}));
    const std::optional<ProgressShares::Share> share = shares.Before(1);
    ASSERT_TRUE(share);
    covered += share->lower <= 0.1 && 0.1 <= share->upper ? 1 : 0;
  }
  EXPECT_GT(covered, 0.86 * kTrials);
  EXPECT_LT(covered, 0.94 * kTrials);
}

}  // namespace
}  // namespace egeria::policy
