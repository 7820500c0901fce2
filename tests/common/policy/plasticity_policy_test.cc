#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// This is a job of three modules whose steps count up by one, with n = 1, W = 3, and no bootstrapping unless asked for.
class Job {
 public:
  explicit Job(PlasticityConfig config = NoBootstrap(), bool losses_reported = true) {
    if (config.interval_steps == 0) config.interval_steps = 1;
    policy_ = MakePolicy(config, JobShape{3, 0, losses_reported}).value();
  }
  static PlasticityConfig NoBootstrap() {
    PlasticityConfig config;
    config.window = 3;
    config.bootstrap = false;
    return config;
  }

  Policy& policy() { return *policy_; }
  int64_t step() const { return step_; }

  std::optional<Decision> Observe(Observation observation) {
    observation.step = ++step_;
    return policy_->Observe(observation);
  }
  std::optional<Decision> Read(double plasticity, std::optional<int> module = std::nullopt) {
    return Observe({.module = module.value_or(policy_->frozen_prefix()), .plasticity = plasticity});
  }
  std::optional<Decision> Rate(double rate) { return Observe({.learning_rate = rate}); }
  std::optional<Decision> Loss(double loss) { return Observe({.loss = loss}); }

  // Reads a fast decay until the frontmost module freezes; returns how many readings that took.
  int ReadUntilFrozen() {
    for (int i = 0; i < 1000; ++i) {
      if (Read(std::exp(-i / 1.5))) return i + 1;
    }
    return -1;
  }

 private:
  std::unique_ptr<Policy> policy_;
  int64_t step_ = 0;
};

TEST(PlasticityPolicy, MeasuresAfterSixIntervalsWhereNoLossIsReported) {
  PlasticityConfig config = Job::NoBootstrap();
  config.bootstrap = true;
  config.interval_steps = 2;
  Job job(config, /*losses_reported=*/false);
  EXPECT_FALSE(job.policy().wants_loss());
  EXPECT_EQ(job.policy().awaited_step(), 12);
  while (job.step() < 11) job.Read(1.0 / static_cast<double>(1 + job.step()));
  EXPECT_TRUE(job.policy().status().bootstrapping);
  EXPECT_FALSE(job.policy().monitoring().has_value());
  EXPECT_EQ(job.policy().status().modules[0].readings, 0) << "no reading counts before";
  job.Observe({});
  EXPECT_FALSE(job.policy().status().bootstrapping);
  EXPECT_TRUE(job.policy().monitoring().has_value());
  EXPECT_FALSE(job.policy().awaited_step().has_value());
  EXPECT_GT(job.ReadUntilFrozen(), 0);
}

TEST(PlasticityPolicy, AwaitsNoStepWithLossesOrWithoutBootstrapping) {
  EXPECT_FALSE(Job(PlasticityConfig()).policy().awaited_step().has_value());
  EXPECT_FALSE(Job(Job::NoBootstrap(), false).policy().awaited_step().has_value());
}

TEST(PlasticityPolicy, FreezesAfterThreeSlopesAndAWindowUnderTheThreshold) {
  // With W = 3, the readings 8, 4, 2, 1 and then 1 are smoothed to 8, 6, 14/3, 7/3, 4/3, 1, 1, 1 and so on.
  Job job;
  const std::vector<double> readings = {8, 4, 2, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < readings.size(); ++i) {
    ASSERT_FALSE(job.Read(readings[i])) << i;
    if (i == 3) {
      // The slopes are -2, -5/3, -11/6: the threshold is 20 % of 2.
      const ModuleStatus status = job.policy().status().modules[0];
      EXPECT_DOUBLE_EQ(status.threshold.value(), 0.4);
      EXPECT_NEAR(status.slope.value(), -11.0 / 6, 1e-12);
      EXPECT_EQ(status.consecutive, 0);
      EXPECT_EQ(status.readings, 4);
      EXPECT_DOUBLE_EQ(status.plasticity.value(), 1);
    }
  }
  // The slopes from the fourth on are -5/3, -2/3, -1/6, 0, 0.
  EXPECT_EQ(job.policy().status().modules[0].consecutive, 2);
  const std::optional<Decision> decision = job.Read(1);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kFreeze);
  EXPECT_EQ(decision->frozen_prefix, 1);
  EXPECT_EQ(decision->step, job.step());
  EXPECT_EQ(decision->reason, "module 0: |slope| 0 under 20 % of the initial 2 for 3 readings");
}

TEST(PlasticityPolicy, NeedsAtLeastWPlusFourReadings) {
  for (const int window : {3, 7, 10}) {
    PlasticityConfig config = Job::NoBootstrap();
    config.window = window;
    Job job(config);
    job.Read(1);
    int readings = 1;
    while (!job.Read(0)) ++readings;
    EXPECT_GE(readings + 1, window + 4);
    EXPECT_LE(readings + 1, 3 * window + 4);
  }
}

TEST(PlasticityPolicy, RestartsTheCountAtASlopeOverTheThreshold) {
  PlasticityConfig config = Job::NoBootstrap();
  config.window = 10;
  Job job(config);
  for (int i = 0; i < 12; ++i) ASSERT_FALSE(job.Read(i == 0 ? 1 : 0));
  ASSERT_GT(job.policy().status().modules[0].consecutive, 0);
  job.Read(1000);
  EXPECT_EQ(job.policy().status().modules[0].consecutive, 0);
}

TEST(PlasticityPolicy, FreezesOneModuleAfterTheOtherButNeverTheLast) {
  Job job;
  EXPECT_GT(job.ReadUntilFrozen(), 0);
  EXPECT_EQ(job.policy().frozen_prefix(), 1);
  EXPECT_EQ(job.policy().status().modules[1].readings, 0);
  EXPECT_GT(job.ReadUntilFrozen(), 0);
  EXPECT_EQ(job.policy().frozen_prefix(), 2);
  EXPECT_EQ(job.ReadUntilFrozen(), -1);
  EXPECT_FALSE(job.policy().monitoring());
}

TEST(PlasticityPolicy, CountsOnlyReadingsOfTheFrontmostModule) {
  Job job;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(job.Read(0, 1));
    EXPECT_FALSE(job.Read(0, 2));
    EXPECT_FALSE(job.Read(0, -1));
    EXPECT_FALSE(job.Read(0, 99));
  }
  EXPECT_EQ(job.policy().status().modules[0].readings, 0);
}

TEST(PlasticityPolicy, CountsAReadingWithoutAModuleForTheFrontmost) {
  Job job;
  job.Observe({.plasticity = 0.5});
  EXPECT_EQ(job.policy().status().modules[0].readings, 1);
}

TEST(PlasticityPolicy, IgnoresNumbersThatAreNotFiniteOrAbsurd) {
  Job plain, noisy;
  for (int i = 0; plain.policy().frozen_prefix() == 0; ++i) {
    for (const double bad : {kNan, kInf, -kInf, 1e300, -1e300}) {
      EXPECT_FALSE(noisy.Observe({.module = 0, .plasticity = bad, .loss = bad, .learning_rate = bad}));
    }
    EXPECT_FALSE(noisy.Rate(-1));
    EXPECT_EQ(plain.Read(std::exp(-i)).has_value(), noisy.Read(std::exp(-i)).has_value());
  }
  EXPECT_EQ(noisy.policy().frozen_prefix(), 1);
  EXPECT_FALSE(noisy.Rate(kNan));
  EXPECT_FALSE(noisy.Rate(-kInf));
  EXPECT_FALSE(noisy.Rate(-1));
}

TEST(PlasticityPolicy, FreezesAModuleWhosePlasticityIsExactlyConstant) {
  for (const double value : {0.0, 0.1, 3e-9}) {
    Job job;
    int readings = 1;
    while (!job.Read(value) && readings < 100) ++readings;
    EXPECT_EQ(readings, 7) << value;  // W + 4
  }
}

TEST(PlasticityPolicy, DoesNotFreezeWhatMovesAfterThreeSlopesOfZero) {
  Job job;
  for (int i = 0; i < 4; ++i) job.Read(0.1);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(job.Read(0.1 + 1e-6 * i));
}

TEST(PlasticityPolicy, ComparesTheMagnitudeUnlessSigned) {
  PlasticityConfig config = Job::NoBootstrap();
  Job magnitude(config);
  config.signed_slope = true;
  Job with_sign(config);
  int frozen_at = 0;
  for (int i = 1; i <= 100; ++i) {
    EXPECT_FALSE(magnitude.Read(-1.0 * i)) << "a steady fall is not stationary";
    if (frozen_at == 0 && with_sign.Read(-1.0 * i)) frozen_at = i;
  }
  EXPECT_EQ(frozen_at, 7);  // the listing as printed freezes it as soon as it can
}

TEST(PlasticityPolicy, UnfreezesAllWhenLearningRateFallsTenfold) {
  PlasticityConfig config = Job::NoBootstrap();
  config.window = 10;
  Job job(config);
  job.Rate(0.1);
  job.ReadUntilFrozen();
  job.ReadUntilFrozen();
  ASSERT_EQ(job.policy().frozen_prefix(), 2);
  EXPECT_FALSE(job.Rate(0.05));
  EXPECT_FALSE(job.Rate(0.0101));
  const std::optional<Decision> decision = job.Rate(0.1 * 0.1);  // a little over 0.01
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kUnfreeze);
  EXPECT_EQ(decision->frozen_prefix, 0);
  EXPECT_THAT(decision->reason, HasSubstr("learning rate 0.01 is at or under 1/10 of the 0.1 at the first freeze"));
  EXPECT_THAT(decision->reason, HasSubstr("window 10 -> 5"));
  EXPECT_EQ(job.policy().monitoring()->refresh_readings, 5);
  EXPECT_EQ(job.policy().monitoring()->module, 0);
  for (const ModuleStatus& status : job.policy().status().modules) {
    EXPECT_EQ(status.readings, 0);
    EXPECT_FALSE(status.threshold);
  }
}

TEST(PlasticityPolicy, UnfreezesOnceForADropAndTakesANewReferenceAfterIt) {
  Job job;
  job.Rate(1);
  job.ReadUntilFrozen();
  EXPECT_TRUE(job.Rate(0.1));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(job.Rate(0.1));
  EXPECT_FALSE(job.Rate(0.001)) << "nothing is frozen";
  job.ReadUntilFrozen();
  EXPECT_FALSE(job.Rate(0.001));
  EXPECT_TRUE(job.Rate(0.0001)) << "a tenth of the rate at the refreeze";
}

TEST(PlasticityPolicy, TakesItsReferenceAtTheFirstFreezeNotAtLaterOnes) {
  Job job;
  job.Rate(0.1);
  job.ReadUntilFrozen();
  job.Rate(0.04);
  job.ReadUntilFrozen();
  EXPECT_TRUE(job.Rate(0.01));
}

TEST(PlasticityPolicy, HalvesTheWindowDownToThree) {
  PlasticityConfig config = Job::NoBootstrap();
  config.window = 15;
  Job job(config);
  double rate = 1;
  for (const int expected : {7, 3, 3}) {
    job.Rate(rate);
    job.ReadUntilFrozen();
    ASSERT_TRUE(job.Rate(rate /= 10));
    EXPECT_EQ(job.policy().monitoring()->refresh_readings, expected);
  }
}

TEST(PlasticityPolicy, TakesTheFirstKnownRateAsReferenceWhereNoneWasKnownAtTheFreeze) {
  Job unknown;
  unknown.ReadUntilFrozen();
  EXPECT_FALSE(unknown.Rate(0.01));
  EXPECT_TRUE(unknown.Rate(0.001));

  Job zero;  // the zero of a warm-up is no reference
  zero.Rate(0);
  zero.ReadUntilFrozen();
  EXPECT_FALSE(zero.Rate(0));
  EXPECT_FALSE(zero.Rate(0.5));
  EXPECT_TRUE(zero.Rate(0));
}

TEST(PlasticityPolicy, NeverUnfreezesAtADropOfZero) {
  PlasticityConfig config = Job::NoBootstrap();
  config.learning_rate_drop = 0;
  Job job(config);
  job.Rate(1);
  job.ReadUntilFrozen();
  EXPECT_FALSE(job.Rate(1e-9));
  EXPECT_FALSE(job.Rate(0));
}

TEST(PlasticityPolicy, UnfreezesWhenACyclicalRateRises) {
  PlasticityConfig config = Job::NoBootstrap();
  config.window = 8;
  config.learning_rate_drop = 0;
  config.learning_rate_rise = 4;
  Job job(config);
  job.Rate(0.4);
  job.ReadUntilFrozen();
  EXPECT_FALSE(job.Rate(0.1));
  EXPECT_FALSE(job.Rate(0));  // no minimum
  EXPECT_FALSE(job.Rate(0.39));
  const std::optional<Decision> decision = job.Rate(0.4);
  ASSERT_TRUE(decision);
  EXPECT_THAT(decision->reason, HasSubstr("learning rate 0.4 is at or over 4 times its minimum of 0.1"));
  EXPECT_EQ(job.policy().monitoring()->refresh_readings, 8) << "a rise keeps the window";
}

TEST(PlasticityPolicy, UnfreezesAtGivenSteps) {
  PlasticityConfig config = Job::NoBootstrap();
  config.unfreeze_steps = {2, 50, 51, 60};
  Job job(config);
  job.ReadUntilFrozen();
  std::vector<int64_t> unfrozen;
  while (job.step() < 100) {
    const std::optional<Decision> decision = job.Read(0, 99);
    if (decision) unfrozen.push_back(decision->step);
  }
  // Nothing was frozen at step 2, and nothing any more at 51 and 60.
  EXPECT_EQ(unfrozen, (std::vector<int64_t>{50}));
  EXPECT_EQ(job.policy().frozen_prefix(), 0);
}

TEST(PlasticityPolicy, HalvesTheWindowWhereADropFallsOnAGivenStep) {
  PlasticityConfig config = Job::NoBootstrap();
  config.window = 10;
  config.unfreeze_steps = {200};
  Job job(config);
  job.Rate(1);
  job.ReadUntilFrozen();
  Observation both{.step = 200, .learning_rate = 0.1};
  ASSERT_TRUE(job.policy().Observe(both));
  EXPECT_EQ(job.policy().monitoring()->refresh_readings, 5);
}

TEST(PlasticityPolicy, CountsAReadingThatComesWithTheDropForTheFirstModule) {
  Job job;
  job.Rate(1);
  job.ReadUntilFrozen();
  const std::optional<Decision> decision = job.Observe({.plasticity = 0.5, .learning_rate = 0.1});
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kUnfreeze);
  EXPECT_EQ(job.policy().status().modules[0].readings, 1);
}

TEST(PlasticityPolicy, WaitsForTheLossToSettle) {
  PlasticityConfig config = Job::NoBootstrap();
  config.bootstrap = true;
  Job job(config);
  EXPECT_TRUE(job.policy().wants_loss());
  EXPECT_TRUE(job.policy().status().bootstrapping);
  EXPECT_FALSE(job.policy().monitoring());
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(job.Read(0));
  EXPECT_EQ(job.policy().status().modules[0].readings, 0) << "readings before its end are ignored";
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(job.policy().wants_loss());
    job.Loss(1);
  }
  EXPECT_FALSE(job.policy().wants_loss());
  EXPECT_FALSE(job.policy().status().bootstrapping);
  ASSERT_TRUE(job.policy().monitoring());
  EXPECT_EQ(job.policy().monitoring()->module, 0);
  EXPECT_EQ(job.policy().monitoring()->interval_steps, 1);
  EXPECT_EQ(job.policy().monitoring()->batch_size, 32);
  EXPECT_EQ(job.policy().monitoring()->refresh_readings, 3);
}

TEST(PlasticityPolicy, CountsTheReadingThatComesWithTheSettlingLoss) {
  PlasticityConfig config = Job::NoBootstrap();
  config.bootstrap = true;
  Job job(config);
  for (int i = 0; i < 6; ++i) job.Observe({.module = 0, .plasticity = 0.5, .loss = 1});
  EXPECT_EQ(job.policy().status().modules[0].readings, 1);
}

TEST(PlasticityPolicy, DoesNotRepeatBootstrappingAfterAnUnfreeze) {
  PlasticityConfig config = Job::NoBootstrap();
  config.bootstrap = true;
  Job job(config);
  for (int i = 0; i < 6; ++i) job.Loss(1);
  job.Rate(1);
  job.ReadUntilFrozen();
  ASSERT_TRUE(job.Rate(0.1));
  EXPECT_FALSE(job.policy().wants_loss());
  EXPECT_GT(job.ReadUntilFrozen(), 0);
}

TEST(PlasticityPolicy, GoesOnFromAnAdoptedPrefixWithFreshHistory) {
  Job job;
  job.Rate(0.1);
  for (int i = 0; i < 5; ++i) job.Read(i);
  job.policy().Adopt(job.step(), 1);
  EXPECT_EQ(job.policy().frozen_prefix(), 1);
  EXPECT_EQ(job.policy().monitoring()->module, 1);
  EXPECT_EQ(job.policy().status().modules[1].readings, 0);
  EXPECT_EQ(job.policy().status().modules[0].readings, 5) << "what is known of it stays visible";
  EXPECT_TRUE(job.Rate(0.01)) << "the rate in force when it was adopted is the reference";
}

TEST(PlasticityPolicy, KeepsItsReferenceWhenItAdoptsAndForgetsItWhenAllAreActive) {
  Job job;
  job.Rate(0.1);
  job.ReadUntilFrozen();
  job.Rate(0.05);
  job.policy().Adopt(job.step(), 2);
  ASSERT_TRUE(job.Rate(0.01));

  Job other;
  other.Rate(0.1);
  other.ReadUntilFrozen();
  other.policy().Adopt(other.step(), 0);
  EXPECT_FALSE(other.Rate(0.01));
  other.policy().Adopt(other.step(), 1);
  EXPECT_FALSE(other.Rate(0.0011));
  EXPECT_TRUE(other.Rate(0.001));
}

TEST(PlasticityPolicy, SkipsUnfreezeStepsThatACheckpointHasBehindIt) {
  PlasticityConfig config = Job::NoBootstrap();
  config.unfreeze_steps = {100, 200};
  Job job(config);
  job.policy().Adopt(150, 2);
  EXPECT_FALSE(job.policy().Observe({.step = 151}));
  EXPECT_TRUE(job.policy().Observe({.step = 200}));
  // The training resumes from before, and the step comes once more.
  job.policy().Adopt(150, 2);
  EXPECT_FALSE(job.policy().Observe({.step = 151}));
  EXPECT_TRUE(job.policy().Observe({.step = 200}));
}

TEST(PlasticityPolicy, DecidesAtTheNewestStepThoughAReadingComesLate) {
  Job job;
  job.Read(1);
  Observation late{.step = 3, .module = 0, .plasticity = 0};
  job.policy().Observe({.step = 1000});
  std::optional<Decision> decision;
  while (!decision) decision = job.policy().Observe(late);
  EXPECT_EQ(decision->step, 1000);
}

TEST(PlasticityPolicy, TakesHugeAndNegativeSteps) {
  PlasticityConfig config = Job::NoBootstrap();
  config.bootstrap = true;
  Job job(config);
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t step : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0}, most - 4, most - 1, most}) {
    EXPECT_FALSE(job.policy().Observe({.step = step, .module = 0, .plasticity = 1, .loss = 1}));
  }
  EXPECT_FALSE(job.policy().status().bootstrapping);
}

}  // namespace
}  // namespace egeria::policy
