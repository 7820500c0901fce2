#include "common/plasticity/activation_metric.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/plasticity/gram_matrix.h"

namespace egeria::plasticity {
namespace {

using ::testing::StartsWith;

constexpr auto kNorm = ActivationMetric::kActivationNorm;

TEST(ActivationMetric, TheNormIsThatOfTheDifferenceOverTheReferences) {
  const std::vector<float> training = {1, 2, 3, 4}, reference = {1, 2, 3, 1};
  EXPECT_DOUBLE_EQ(Distance(kNorm, training, reference, 2).value(), 3 / std::sqrt(15.0));
  EXPECT_EQ(Distance(kNorm, training, training, 2).value(), 0);
}

TEST(ActivationMetric, TheNormSeesAChangeOfScaleAndTheSpLossDoesNot) {
  const std::vector<float> output = {1, 2, -3, 4, 5, 6}, twice = {2, 4, -6, 8, 10, 12};
  EXPECT_DOUBLE_EQ(Distance(kNorm, twice, output, 2).value(), 1);
  const auto gram = [](const std::vector<float>& rows) {
    const std::vector<double> exact = GramMatrix(rows, 2, 3);
    return std::vector<float>(exact.begin(), exact.end());
  };
  EXPECT_NEAR(Distance(ActivationMetric::kSpLoss, gram(twice), gram(output), 2).value(), 0, 1e-12);
}

TEST(ActivationMetric, AReferenceOfZerosGivesANumber) {
  EXPECT_EQ(Distance(kNorm, std::vector<float>{0, 0}, std::vector<float>{0, 0}, 2).value(), 0);
  EXPECT_TRUE(std::isfinite(Distance(kNorm, std::vector<float>{1, 1}, std::vector<float>{0, 0}, 2).value()));
}

TEST(ActivationMetric, RefusesWhatTellsNothing) {
  const auto name = [](const std::vector<float>& training, const std::vector<float>& reference, int64_t batch) {
    return std::string(Distance(kNorm, training, reference, batch).status().message());
  };
  EXPECT_THAT(name({1, 2}, {1, 2, 3, 4}, 2), StartsWith("[BAD_SHAPE]"));
  EXPECT_THAT(name({1, 2, 3}, {1, 2, 3}, 2), StartsWith("[BAD_SHAPE]"));
  EXPECT_THAT(name({1, 2}, {1, 2}, 1), StartsWith("[BAD_SHAPE]"));
  EXPECT_THAT(name({}, {}, 2), StartsWith("[BAD_SHAPE]"));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(name({1, nan}, {1, 2}, 2), StartsWith("[NOT_FINITE]"));
  EXPECT_THAT(name({1, 2}, {infinity, 2}, 2), StartsWith("[NOT_FINITE]"));
}

}  // namespace
}  // namespace egeria::plasticity
