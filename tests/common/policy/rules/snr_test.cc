#include "common/policy/rules/snr.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

GradientReading SquaresAt(int64_t step, int parts, double mean_of_squares, double square_of_mean) {
  return {step, 0, parts, {mean_of_squares}, {square_of_mean}, 64};
}

TEST(Snr, IsTheRatioOfUnbiasedSumsBroughtToTheFullBatch) {
  SnrEstimator estimator(1, 10);
  estimator.Add(SquaresAt(1, 4, 10, 4));  // A = (16 - 10) / 3 = 2
  estimator.Add(SquaresAt(2, 4, 20, 8));  // A = 4
  const double r = 6.0 / 30;
  EXPECT_DOUBLE_EQ(estimator.Pooled({0})->snr.value, 4 * r / (1 + 3 * r));
  EXPECT_EQ(estimator.Pooled({0})->readings, 2);
  EXPECT_EQ(estimator.Pooled({0})->samples, 64);
}

TEST(Snr, OfEqualPartsIsOneAndOfOppositeOnesNotOverZero) {
  SnrEstimator equal(1, 10), opposite(1, 10);
  for (int i = 0; i < 5; ++i) {
    equal.Add(SquaresAt(i, 2, 3, 3));
    opposite.Add(SquaresAt(i, 2, 3, 0));
  }
  EXPECT_DOUBLE_EQ(equal.Pooled({0})->snr.value, 1);
  EXPECT_DOUBLE_EQ(equal.Pooled({0})->snr.upper, 1);
  EXPECT_LE(opposite.Pooled({0})->snr.upper, 0);
  EXPECT_TRUE(std::isfinite(opposite.Pooled({0})->snr.lower));
}

TEST(Snr, OfAllZerosIsNone) {
  SnrEstimator estimator(1, 10);
  for (int i = 0; i < 5; ++i) estimator.Add(SquaresAt(i, 2, 0, 0));
  EXPECT_FALSE(estimator.Pooled({0}));
}

TEST(Snr, PassesOverWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  SnrEstimator estimator(2, 10);
  estimator.Add(SquaresAt(1, 1, 1, 1));
  estimator.Add(SquaresAt(2, 2, nan, 1));
  estimator.Add(SquaresAt(3, 2, 1, std::numeric_limits<double>::infinity()));
  estimator.Add(SquaresAt(4, 2, -1, 1));
  estimator.Add({5, 7, 2, {1.0}, {1.0}, 64});
  EXPECT_EQ(estimator.readings(0), 0);
  estimator.Add(SquaresAt(6, 2, 1, 1));
  EXPECT_EQ(estimator.readings(0), 1);
  EXPECT_EQ(estimator.readings(1), 0);
}

TEST(Snr, KeepsTheLastReadingsAndForgetsThoseOfOtherParts) {
  SnrEstimator estimator(1, 3);
  for (int i = 0; i < 5; ++i) estimator.Add(SquaresAt(i, 2, 1, 0.5));
  EXPECT_EQ(estimator.readings(0), 3);
  for (int i = 5; i < 8; ++i) EXPECT_EQ(estimator.Add(SquaresAt(i, 4, 1, 0.5)), i == 7);
  EXPECT_EQ(estimator.readings(0), 1);
}

// The last step of each epoch may have fewer micro-batches.
TEST(Snr, LeavesOutSingleReadingsOfAnotherNumberOfParts) {
  SnrEstimator estimator(1, 100);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(estimator.Add(SquaresAt(i, i % 3 == 2 ? 3 : 4, 1, 0.5)), i % 3 != 2);
  EXPECT_EQ(estimator.readings(0), 20);
}

TEST(Snr, ThresholdRisesWithTheBatch) {
  EXPECT_DOUBLE_EQ(ThresholdAtBatch(0.05, 64), 0.05);
  EXPECT_DOUBLE_EQ(ThresholdAtBatch(0.05, 256), 0.2 / 1.15);
  EXPECT_DOUBLE_EQ(ThresholdAtBatch(0.05, 32), 0.025 / (1 - 0.025));
  EXPECT_DOUBLE_EQ(ThresholdAtBatch(0.05, 0), 0.05);
}

TEST(Snr, QuantilesAreStudents) {
  const std::vector<std::pair<int, double>> table = {{1, 6.314},  {2, 2.920},  {3, 2.353},  {5, 2.015},
                                                     {10, 1.812}, {15, 1.753}, {59, 1.671}, {1000, 1.646}};
  for (const auto& [degrees, quantile] : table) EXPECT_NEAR(StudentQuantile95(degrees), quantile, 0.01) << degrees;
}

// This tells how often the interval covers the truth, and how wide it is. Each trial looks at one module.
struct Coverage {
  double share = 0;
  double width = 0;
};

Coverage CoverageOf(double snr, int parts, int readings, int modules) {
  constexpr int kTrials = 1000;
  SimulatedGradients gradients(static_cast<uint64_t>(1000 * snr) + 10 * static_cast<uint64_t>(parts) + 7, parts, 60);
  std::vector<int> all;
  for (int module = 0; module < modules; ++module) all.push_back(module);
  Coverage coverage;
  for (int trial = 0; trial < kTrials; ++trial) {
    SnrEstimator estimator(modules, readings);
    for (int i = 0; i < readings; ++i) {
      estimator.Add(gradients.Reading(i, 0, std::vector<double>(static_cast<size_t>(modules), snr)));
    }
    const SnrEstimate estimate = estimator.Pooled(all)->snr;
    coverage.share += (estimate.lower <= snr && snr <= estimate.upper) / static_cast<double>(kTrials);
    coverage.width += (estimate.upper - estimate.lower) / kTrials;
  }
  return coverage;
}

TEST(Snr, IntervalCoversTheTruthNineTimesOutOfTen) {
  for (const double snr : {0.01, 0.05, 0.2}) {
    for (const int parts : {2, 4}) {
      for (const int readings : {20, 60}) {
        const Coverage coverage = CoverageOf(snr, parts, readings, 1);
        std::printf("SNR %.2f, %d parts, %d readings: covered %.3f, width %.3f\n", snr, parts, readings, coverage.share,
                    coverage.width);
        // 1,000 trials: the standard deviation of a share of .9 is .0095.
        EXPECT_GE(coverage.share, 0.865) << snr << " " << parts << " " << readings;
        EXPECT_LE(coverage.share, 0.935) << snr << " " << parts << " " << readings;
      }
    }
  }
}

TEST(Snr, PooledIntervalIsNarrowerAndCoversNearlyAsOften) {
  const Coverage single = CoverageOf(0.05, 2, 60, 1);
  const Coverage pooled = CoverageOf(0.05, 2, 60, 6);
  std::printf("6 modules pooled: covered %.3f, width %.3f; one: %.3f, %.3f\n", pooled.share, pooled.width, single.share,
              single.width);
  EXPECT_GE(pooled.share, 0.85);
  EXPECT_LT(pooled.width, 0.6 * single.width);
}

// Modules that see the same noise are no independent witnesses: pooling copies must not narrow the interval.
TEST(Snr, PoolingTheSameModuleTwiceGainsNothing) {
  SimulatedGradients gradients(3, 2);
  SnrEstimator estimator(2, 40);
  for (int i = 0; i < 40; ++i) {
    GradientReading reading = gradients.Reading(i, 0, {0.1});
    reading.mean_of_squares.push_back(reading.mean_of_squares[0]);
    reading.square_of_mean.push_back(reading.square_of_mean[0]);
    estimator.Add(reading);
  }
  const SnrEstimate one = estimator.Pooled({0})->snr, both = estimator.Pooled({0, 1})->snr;
  EXPECT_NEAR(both.lower, one.lower, 1e-9);
  EXPECT_NEAR(both.upper, one.upper, 1e-9);
}

TEST(Snr, WithFewReadingsTheIntervalIsWiderThanTheNormalOne) {
  SnrEstimator few(1, 4), many(1, 64);
  for (int i = 0; i < 64; ++i) {
    const GradientReading reading = SquaresAt(i, 2, 1, 0.5 + (i % 2 == 0 ? 0.1 : -0.1));
    if (i < 4) few.Add(reading);
    many.Add(reading);
  }
  const SnrEstimate a = few.Pooled({0})->snr, b = many.Pooled({0})->snr;
  EXPECT_GT(a.upper - a.lower, 4 * (b.upper - b.lower));
}

}  // namespace
}  // namespace egeria::policy
