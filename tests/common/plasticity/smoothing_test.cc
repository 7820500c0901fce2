#include "common/plasticity/smoothing.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::plasticity {
namespace {

TEST(Window, AveragesAsManyAsThereAreAndThenTheLast) {
  Window window(3);
  const std::vector<double> values = {6, 0, 3, 9, 0};
  const std::vector<double> means = {6, 3, 3, 4, 4};
  for (size_t i = 0; i < values.size(); ++i) {
    window.Add(values[i]);
    EXPECT_DOUBLE_EQ(window.Mean(), means[i]) << i;
  }
  EXPECT_EQ(window.size(), 3u);
}

TEST(Window, HasNoSlopeUnderTwoValues) {
  Window window(4);
  EXPECT_FALSE(window.Slope().has_value());
  window.Add(1);
  EXPECT_FALSE(window.Slope().has_value());
  window.Add(3);
  EXPECT_DOUBLE_EQ(window.Slope().value(), 2);
}

TEST(Window, OfOneValueNeverHasASlope) {
  Window window(1);
  for (int i = 0; i < 5; ++i) window.Add(i);
  EXPECT_DOUBLE_EQ(window.Mean(), 4);
  EXPECT_FALSE(window.Slope().has_value());
}

TEST(Window, SlopeOfAConstantIsExactlyZeroAndItsMeanExact) {
  for (const double value : {0.0, 0.1, 1.0 / 3, 7e-21, 1e99}) {
    Window window(10);
    for (int i = 0; i < 25; ++i) {
      window.Add(value);
      EXPECT_EQ(window.Mean(), value);
      EXPECT_EQ(window.Slope().value_or(0), 0);
    }
  }
}

TEST(Window, MeanOfTheSameValuesDoesNotDependOnTheirOrder) {
  const double low = 0.007016282575014487, high = 0.18760310272136757;
  Window window(3);
  for (const double value : {low, low, high}) window.Add(value);
  const double mean = window.Mean();
  window.Add(low);
  EXPECT_EQ(window.Mean(), mean);  // low, high, low
  window.Add(low);
  EXPECT_EQ(window.Mean(), mean);  // high, low, low
}

TEST(Window, SlopeIsThatOfTheNormalEquations) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (int count = 2; count <= 40; ++count) {
    Window window(static_cast<size_t>(count));
    std::vector<double> y;
    for (int i = 0; i < 3 * count; ++i) {
      y.push_back(normal(random));
      window.Add(y.back());
    }
    long double sx = 0, sy = 0, sxy = 0, sxx = 0;
    for (int x = 0; x < count; ++x) {
      const long double value = y[y.size() - static_cast<size_t>(count) + static_cast<size_t>(x)];
      sx += x;
      sy += value;
      sxy += x * value;
      sxx += static_cast<long double>(x) * x;
    }
    const long double expected = (count * sxy - sx * sy) / (count * sxx - sx * sx);
    EXPECT_NEAR(window.Slope().value(), static_cast<double>(expected), 1e-13) << count;
  }
}

}  // namespace
}  // namespace egeria::plasticity
