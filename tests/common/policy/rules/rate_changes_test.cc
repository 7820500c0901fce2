#include "common/policy/rules/rate_changes.h"

#include <cmath>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns the steps at which a rate that is observed every `apart` steps is told to have changed.
std::vector<int64_t> ChangesOf(const std::function<double(int64_t)>& rate, int64_t apart = 10, int64_t steps = 1000) {
  RateChanges changes;
  std::vector<int64_t> at;
  for (int64_t step = 0; step < steps; step += apart) {
    if (changes.Observe(step, rate(step))) at.push_back(step);
    EXPECT_EQ(changes.newest(), rate(step));
  }
  return at;
}

TEST(RateChanges, AreDropsHoweverManyAndRises) {
  EXPECT_THAT(ChangesOf([](int64_t) { return 0.1; }), IsEmpty());
  EXPECT_THAT(ChangesOf([](int64_t s) {
                return s < 600 ? 0.1 : s < 750 ? 0.01 : s < 900 ? 0.001 : 0.0001;
              }),
              ElementsAre(600, 750, 900));
  EXPECT_THAT(ChangesOf([](int64_t s) { return s < 600 ? 0.1 : 0.092; }), IsEmpty()) << "8 %";
  EXPECT_THAT(ChangesOf([](int64_t s) { return s < 600 ? 0.1 : s < 650 ? 0.05 : 0.025; }), ElementsAre(600, 650));
  EXPECT_THAT(ChangesOf([](int64_t s) { return s < 600 ? 0.1 : 0.111; }), ElementsAre(600));
  EXPECT_THAT(ChangesOf([](int64_t s) { return s < 600 ? 0.1 : 0.0; }), ElementsAre(600));
  EXPECT_THAT(ChangesOf([](int64_t s) { return s < 600 ? 0.0 : 0.1; }), ElementsAre(600));
}

TEST(RateChanges, ASlowRiseCountsAndASlowDecayDoesNot) {
  EXPECT_THAT(ChangesOf([](int64_t s) { return 0.1 * (1 + 0.0005 * static_cast<double>(s)); }).size(), 4u)
      << "four times 10 % in 50 %";
  EXPECT_THAT(ChangesOf([](int64_t s) { return 0.1 * std::exp(-0.005 * static_cast<double>(s)); }), IsEmpty());
}

// However seldom it is observed, a cosine or a line to zero is no change until it is zero.
TEST(RateChanges, TheEndOfACosineIsNoDrop) {
  const auto cosine = [](int64_t s) { return 0.05 * (1 + std::cos(3.14159265358979 * static_cast<double>(s) / 1000)); };
  const auto line = [](int64_t s) { return 0.1 * (1 - static_cast<double>(s) / 1000); };
  for (const int64_t apart : {1, 5, 10, 20}) {
    EXPECT_THAT(ChangesOf(cosine, apart, 1000 - apart), IsEmpty()) << apart;
    EXPECT_THAT(ChangesOf(line, apart, 1000 - apart), IsEmpty()) << apart;
  }
}

TEST(RateChanges, ADropWithinASlowDecayCounts) {
  EXPECT_THAT(
      ChangesOf([](int64_t s) { return 0.1 * std::exp(-0.001 * static_cast<double>(s)) * (s < 500 ? 1 : 0.2); }),
      ElementsAre(500));
}

TEST(RateChanges, ForgetsWhenTrainingGoesBack) {
  RateChanges changes;
  changes.Observe(500, 0.01);
  changes.Forget();
  EXPECT_FALSE(changes.newest());
  EXPECT_FALSE(changes.Observe(100, 0.1));
}

}  // namespace
}  // namespace egeria::policy
