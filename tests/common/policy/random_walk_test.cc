#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "common/policy/policy_config.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

constexpr int kWalks = 2000;
constexpr int kReadings = 1000;

// Returns, sorted, the readings until a module whose plasticity is a random walk freezes (kReadings + 1: not within
// them).
std::vector<int> ReadingsUntilFreeze(const PlasticityConfig& config) {
  std::vector<int> times;
  for (uint64_t seed = 0; seed < kWalks; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const std::unique_ptr<Policy> policy = MakePolicy(config, JobShape{2, 0}).value();
    double walk = 0;
    int time = kReadings + 1;
    for (int i = 1; i <= kReadings; ++i) {
      Observation observation;
      observation.step = i;
      observation.module = 0;
      observation.plasticity = walk += normal(random);
      if (policy->Observe(observation)) {
        time = i;
        break;
      }
    }
    times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return times;
}

PlasticityConfig DefaultRule() {
  PlasticityConfig config;
  config.bootstrap = false;
  return config;
}

double ShareWithin(const std::vector<int>& times, int readings) {
  return static_cast<double>(std::upper_bound(times.begin(), times.end(), readings) - times.begin()) / kWalks;
}

// These are the figures of docs/results/plasticity.md. |slope| is no proof against a random walk either: the threshold
// comes from three slopes, and where those are large by chance the walk passes later. But it is no timer.
TEST(RandomWalk, FreezesUnderTheSignedSlopeAsIfByATimer) {
  PlasticityConfig config = DefaultRule();
  config.signed_slope = true;
  const std::vector<int> times = ReadingsUntilFreeze(config);
  std::printf("signed: median %d readings; within 20 %.3f, 40 %.3f, 100 %.3f\n", times[kWalks / 2],
              ShareWithin(times, 20), ShareWithin(times, 40), ShareWithin(times, 100));
  EXPECT_GE(times[0], 14);  // W + 4 readings are the least
  EXPECT_LT(times[kWalks / 2], 2 * config.window);
  EXPECT_GT(ShareWithin(times, 100), 0.98);
}

TEST(RandomWalk, MostlyStaysActiveUnderTheMagnitudeOfTheSlope) {
  const std::vector<int> times = ReadingsUntilFreeze(DefaultRule());
  std::printf("|slope|: median %d readings; within 20 %.3f, 40 %.3f, 100 %.3f, 1000 %.3f\n", times[kWalks / 2],
              ShareWithin(times, 20), ShareWithin(times, 40), ShareWithin(times, 100), ShareWithin(times, 1000));
  EXPECT_LT(ShareWithin(times, 20), 0.16);
  EXPECT_LT(ShareWithin(times, 40), 0.26);
  EXPECT_LT(ShareWithin(times, 100), 0.45);
  EXPECT_GT(times[kWalks / 2], 12 * 10);
}

TEST(RandomWalk, HardlyEverFreezesUnderASmallTolerance) {
  PlasticityConfig config = DefaultRule();
  config.tolerance = 0.05;
  const std::vector<int> times = ReadingsUntilFreeze(config);
  std::printf("|slope|, tolerance 5 %%: within 40 %.3f, 100 %.3f, 1000 %.3f\n", ShareWithin(times, 40),
              ShareWithin(times, 100), ShareWithin(times, 1000));
  EXPECT_LT(ShareWithin(times, 40), 0.02);
  EXPECT_LT(ShareWithin(times, 100), 0.04);
}

}  // namespace
}  // namespace egeria::policy
