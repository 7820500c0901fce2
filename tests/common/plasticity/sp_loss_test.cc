#include "common/plasticity/sp_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/plasticity/gram_matrix.h"

namespace egeria::plasticity {
namespace {

using ::testing::HasSubstr;

constexpr int kBatch = 8;
constexpr int kWidth = 20;

std::vector<double> RandomRows(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> rows(kBatch * kWidth);
  for (double& x : rows) x = normal(random);
  return rows;
}

std::vector<double> GramOf(const std::vector<double>& rows) { return GramMatrix(rows, kBatch, kWidth); }

double Loss(const std::vector<double>& training, const std::vector<double>& reference) {
  return SpLoss(std::span<const double>(training), std::span<const double>(reference), kBatch).value();
}

TEST(GramMatrix, HoldsTheProductsOfTheRows) {
  const std::vector<float> rows = {1, 2, 3, -1, 0, 2};
  EXPECT_EQ(GramMatrix(rows, 2, 3), (std::vector<double>{14, 5, 5, 5}));
}

TEST(SpLoss, IsWhatTheEquationSays) {
  // Rows normalised: (1, 0), (0.6, 0.8) against (0, 1), (0.8, 0.6): (1 + 1 + 0.04 + 0.04) / 4.
  const std::vector<double> training = {2, 0, 3, 4};
  const std::vector<double> reference = {0, 5, 8, 6};
  EXPECT_NEAR(SpLoss(std::span<const double>(training), std::span<const double>(reference), 2).value(), 0.52, 1e-15);
}

TEST(SpLoss, IsZeroForEqualMatricesAndSymmetric) {
  const std::vector<double> a = GramOf(RandomRows(1));
  const std::vector<double> b = GramOf(RandomRows(2));
  EXPECT_EQ(Loss(a, a), 0);
  EXPECT_GT(Loss(a, b), 1e-3);
  EXPECT_DOUBLE_EQ(Loss(a, b), Loss(b, a));
}

TEST(SpLoss, IgnoresScaleSignAndOrderOfTheFeatures) {
  const std::vector<double> rows = RandomRows(3);
  const std::vector<double> other = GramOf(RandomRows(4));
  std::vector<double> changed(rows.size());
  for (int i = 0; i < kBatch; ++i) {
    for (int k = 0; k < kWidth; ++k) {
      changed[static_cast<size_t>(i * kWidth + k)] = -1e-9 * rows[static_cast<size_t>(i * kWidth + (k + 7) % kWidth)];
    }
  }
  EXPECT_NEAR(Loss(GramOf(changed), other), Loss(GramOf(rows), other), 1e-14);
}

TEST(SpLoss, StaysWithinFourOverB) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const double loss = Loss(GramOf(RandomRows(2 * seed)), GramOf(RandomRows(2 * seed + 1)));
    EXPECT_GE(loss, 0);
    EXPECT_LE(loss, 4.0 / kBatch);
  }
  // The bound is reached by opposite rows.
  std::vector<double> ones(kBatch * kBatch, 1.0);
  std::vector<double> minus(kBatch * kBatch, -1.0);
  EXPECT_DOUBLE_EQ(Loss(ones, minus), 4.0 / kBatch);
}

TEST(SpLoss, OfFloatsIsThatOfTheSameNumbersAsDoubles) {
  const std::vector<double> a = GramOf(RandomRows(5));
  const std::vector<double> b = GramOf(RandomRows(6));
  const std::vector<float> a32(a.begin(), a.end()), b32(b.begin(), b.end());
  const std::vector<double> a64(a32.begin(), a32.end()), b64(b32.begin(), b32.end());
  EXPECT_DOUBLE_EQ(SpLoss(std::span<const float>(a32), std::span<const float>(b32), kBatch).value(), Loss(a64, b64));
}

TEST(SpLoss, CountsARowOfZerosAsZeros) {
  std::vector<double> a(4, 0.0);
  const std::vector<double> b = {1, 0, 0, 1};
  EXPECT_DOUBLE_EQ(SpLoss(std::span<const double>(a), std::span<const double>(b), 2).value(), 0.5);
  EXPECT_EQ(SpLoss(std::span<const double>(a), std::span<const double>(a), 2).value(), 0);
}

TEST(SpLoss, TakesTheLargestAndSmallestFloats) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::min() * 4;
  const std::vector<float> large = {most, most, most, -most};
  const std::vector<float> same = {1, 1, 1, -1};
  EXPECT_NEAR(SpLoss(std::span<const float>(large), std::span<const float>(same), 2).value(), 0, 1e-15);
  const std::vector<float> small = {least, -least, least, least};
  const absl::StatusOr<double> loss = SpLoss(std::span<const float>(small), std::span<const float>(same), 2);
  ASSERT_TRUE(loss.ok());
  EXPECT_TRUE(std::isfinite(*loss));
}

TEST(SpLoss, RefusesWrongShapes) {
  const std::vector<float> four(4), nine(9);
  const auto message = [](const std::vector<float>& a, const std::vector<float>& b, int64_t batch) {
    const auto loss = SpLoss(std::span<const float>(a), std::span<const float>(b), batch);
    EXPECT_EQ(loss.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loss.status().message());
  };
  EXPECT_THAT(message(four, nine, 2), HasSubstr("[BAD_SHAPE] the reference Gram"));
  EXPECT_THAT(message(nine, four, 2), HasSubstr("[BAD_SHAPE] the training Gram"));
  EXPECT_THAT(message(four, four, -2), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(message({}, {}, 0), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(message({1}, {1}, 1), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(message(four, four, int64_t{1} << 32), HasSubstr("[BAD_SHAPE]"));
}

TEST(SpLoss, RefusesNumbersThatAreNotFinite) {
  const std::vector<float> good = {1, 0, 0, 1};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = good;
    broken[3] = bad;
    for (const bool first : {true, false}) {
      const auto loss =
          SpLoss(std::span<const float>(first ? broken : good), std::span<const float>(first ? good : broken), 2);
      EXPECT_EQ(loss.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(loss.status().message()), HasSubstr("[NOT_FINITE]"));
    }
  }
}

}  // namespace
}  // namespace egeria::plasticity
