#include "common/policy/rules/reprobe.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

using Burden = Reprobe::BurdenOfProof;

constexpr int kMinReadings = 8;
constexpr int kMaxReadings = 32;

// This is a probe of four modules that began after step 100, and gradients with these ratios to feed it.
class ReprobeTest : public ::testing::Test {
 protected:
  ReprobeTest()
      : probe_(SnrGate(0.05, 0.05, kMaxReadings, kMinReadings, {1, 1, 1, 1}), 4, kMinReadings, kMaxReadings),
        gradients_(/*seed=*/1, /*parts=*/2, /*dimensions=*/600) {
    probe_.Begin(100);
  }

  // Feeds readings until the probe ends, or until so many.
  std::optional<Reprobe::Finding> Feed(const std::vector<double>& snrs, int frozen, Burden burden, int max = 1000) {
    std::optional<Reprobe::Finding> finding;
    for (int i = 0; i < max && probe_.running(); ++i) {
      finding = probe_.Observe(gradients_.Reading(++step_, 0, snrs), frozen, /*exempt=*/0, burden);
    }
    return finding;
  }

  Reprobe probe_;
  SimulatedGradients gradients_;
  int64_t step_ = 100;
};

TEST_F(ReprobeTest, UndoesALiveFreezeAfterTwoJudgements) {
  const auto finding = Feed({0.001, 0.4, 0.4, 0.4}, 3, Burden::kOnSignal);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->prefix, 1);
  EXPECT_EQ(finding->learns, 1);
  EXPECT_EQ(probe_.readings(), 2 * kMinReadings) << "it is repeated at once";
}

TEST_F(ReprobeTest, LeavesNoiseFrozenAfterOneJudgement) {
  EXPECT_FALSE(Feed({0.0001, 0.0001, 0.0001, 0.4}, 3, Burden::kOnSignal));
  EXPECT_FALSE(probe_.running());
  EXPECT_LE(probe_.readings(), kMaxReadings);
}

TEST_F(ReprobeTest, TakesMoreReadingsWhileItIsInDoubt) {
  Feed({0.06, 0.06, 0.06, 0.06}, 3, Burden::kOnSignal);
  EXPECT_GT(probe_.readings(), kMinReadings);
}

TEST_F(ReprobeTest, EndsAFreezeThatDoesNotJustifyItselfWithItsFirstJudgement) {
  const auto finding = Feed({0.05, 0.05, 0.05, 0.05}, 2, Burden::kOnFreeze);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->prefix, 0);
  EXPECT_FALSE(finding->learns);
  EXPECT_EQ(probe_.readings(), kMinReadings);
}

TEST_F(ReprobeTest, CountsReadingsOfAllModulesAfterItsBeginningOnly) {
  for (int i = 0; i < 100; ++i) {
    probe_.Observe(gradients_.Reading(100, 0, {0.4, 0.4, 0.4, 0.4}), 3, 0, Burden::kOnSignal);
    probe_.Observe(gradients_.Reading(200 + i, 1, {0.4, 0.4, 0.4}), 3, 0, Burden::kOnSignal);
  }
  EXPECT_TRUE(probe_.running());
  EXPECT_EQ(probe_.readings(), 0);
  EXPECT_EQ(probe_.newest_step(), 100);
}

TEST_F(ReprobeTest, BeginsAnewWhereTheRateHasChanged) {
  Feed({0.4, 0.4, 0.4, 0.4}, 3, Burden::kOnSignal, kMinReadings);
  probe_.Restart(200);
  EXPECT_TRUE(probe_.running());
  EXPECT_EQ(probe_.began(), 200);
  EXPECT_FALSE(probe_.Observe(gradients_.Reading(200, 0, {0.4, 0.4, 0.4, 0.4}), 3, 0, Burden::kOnSignal));
  EXPECT_EQ(probe_.newest_step(), 200);
}

TEST_F(ReprobeTest, FindsNothingOnceItHasStopped) {
  probe_.Stop();
  EXPECT_FALSE(Feed({0.4, 0.4, 0.4, 0.4}, 3, Burden::kOnSignal));
  EXPECT_EQ(probe_.readings(), 0);
}

TEST_F(ReprobeTest, LeavesExemptModulesAlone) {
  std::optional<Reprobe::Finding> finding;
  while (probe_.running()) {
    finding =
        probe_.Observe(gradients_.Reading(++step_, 0, {0.4, 0.0001, 0.0001, 0.4}), 3, /*exempt=*/1, Burden::kOnSignal);
  }
  EXPECT_FALSE(finding);
}

}  // namespace
}  // namespace egeria::policy
