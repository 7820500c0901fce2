#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::unique_ptr<Policy> Snr(const SimulatedTraining& training, const SnrConfig& config = {}) {
  return MakePolicy(config, training.shape).value();
}

std::vector<Decision> RunOf(SimulatedTraining& training, const SnrConfig& config = {}) {
  return training.Run(*Snr(training, config));
}

TEST(SnrPolicy, FreezesNoiseLateAndAFewModulesAtATime) {
  SimulatedTraining training = TrainingOf(0.003);
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_THAT(decisions, SizeIs(3));
  int before = 0;
  int64_t step = 0;
  for (const Decision& decision : decisions) {
    EXPECT_EQ(decision.action, Action::kFreeze);
    EXPECT_GE(decision.step, 1600) << "40 % of the steps";
    if (step > 0) {
      EXPECT_GE(decision.step, step + 96) << "2.5 % of the steps, but for a tick";
    }
    EXPECT_LE(decision.frozen_prefix - before, 2);
    step = decision.step;
    before = decision.frozen_prefix;
  }
  EXPECT_LE(decisions[0].step, 1610);
  EXPECT_EQ(before, kModules - 1) << "the last module never freezes";
  EXPECT_THAT(decisions[0].reason, HasSubstr("modules 0 to 1: gradient SNR"));
}

TEST(SnrPolicy, AsksForGradientsOnlyFromShortlyBeforeTheStart) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = Snr(training);
  training.steps = 1399;
  training.Run(*policy);
  EXPECT_EQ(training.gradient_readings, 0);
  training.steps = 1600;
  training.Run(*policy, 1399);
  EXPECT_GE(training.gradient_readings, 98) << "100 readings, 2 steps apart, before step 1600";
  EXPECT_LE(training.gradient_readings, 101);
}

TEST(SnrPolicy, NeverFreezesAtAConstantRateWithLiveGradients) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const int parts : {2, 4}) {
      SimulatedTraining training = TrainingOf(0.2);
      training.seed = seed;
      training.parts = parts;
      EXPECT_THAT(RunOf(training), IsEmpty()) << "seed " << seed << ", " << parts << " parts";
    }
  }
}

// The plasticity is a random walk. Without gradients nothing is known of noise, and live ones decide.
TEST(SnrPolicy, NeverFreezesOnARandomWalk) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    double walk = 1;
    SimulatedTraining training = TrainingOf(0.2);
    training.seed = seed;
    training.plasticity = [&](int, int64_t) { return walk = std::abs(walk + 0.1 * normal(random)); };
    if (seed % 2 == 0) training.snr = nullptr;
    EXPECT_THAT(RunOf(training), IsEmpty()) << seed;
  }
}

TEST(SnrPolicy, FreezesModulesWhoseLearningRateIsZeroAtOnce) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t step) { return step < 8 ? 0 : 2; };
  const auto policy = Snr(training);
  EXPECT_FALSE(policy->Objection(0));
  const std::vector<Decision> decisions = training.Run(*policy);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 2);
  EXPECT_EQ(decisions[0].step, 8);
  EXPECT_THAT(decisions[0].reason, HasSubstr("modules 0 to 1: their learning rates are 0"));
  EXPECT_TRUE(policy->Objection(3));
}

TEST(SnrPolicy, UnfreezesModulesWhoseLearningRateIsZeroNoMore) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t step) { return step < 300 ? 3 : step < 500 ? 1 : 0; };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_THAT(decisions, SizeIs(3));
  EXPECT_EQ(decisions[0].frozen_prefix, 3);
  EXPECT_EQ(decisions[1].frozen_prefix, 1);
  EXPECT_EQ(decisions[1].step, 300);
  EXPECT_EQ(decisions[1].action, Action::kUnfreeze);
  EXPECT_THAT(decisions[1].reason, HasSubstr("learning rate of module 1 is not 0 any more"));
  EXPECT_EQ(decisions[2].frozen_prefix, 0);
  EXPECT_EQ(decisions[2].step, 500);
}

TEST(SnrPolicy, LeavesToItsOperatorWhatAZeroRateWouldFreeze) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t step) { return step < 200 ? 2 : 0; };
  bool unfrozen = false;
  training.meddle = [&](int64_t step, Policy& policy) {
    if (step == 100) policy.Adopt(step, 0);
    unfrozen = unfrozen || (step > 100 && policy.frozen_prefix() == 0);
  };
  const auto policy = Snr(training);
  EXPECT_THAT(training.Run(*policy), SizeIs(1)) << "and the end of the zero rate unfreezes nothing that is active";
  EXPECT_TRUE(unfrozen);
}

TEST(SnrPolicy, FreezesAnewWhatHasNoRateWhereTrainingGoesOnFromBeforeTheFreeze) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t) { return 2; };
  training.steps = 100;
  const auto policy = Snr(training);
  EXPECT_THAT(training.Run(*policy), SizeIs(1));
  policy->Adopt(50, 0);
  EXPECT_THAT(training.Run(*policy, 50), SizeIs(1));
  EXPECT_EQ(policy->frozen_prefix(), 2);
}

TEST(SnrPolicy, UnfreezesNoModuleOfZeroRateWhenOthersRatesRise) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t) { return 2; };
  training.rate = [](int64_t step) { return step < 400 ? 0.01 : 0.1; };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 2);
}

TEST(SnrPolicy, FreezesModulesWhoseGradientsAreExactlyZero) {
  SimulatedTraining training = TrainingOf(0.3);
  const auto policy = Snr(training);
  std::vector<Decision> decisions;
  for (int64_t step = 1500; step < 1700; ++step) {
    GradientReading zeros{step, 0, 2, std::vector<double>(kModules), std::vector<double>(kModules), 64};
    zeros.mean_of_squares.back() = 1;
    if (auto decision = policy->Observe({.step = step, .gradients = zeros})) decisions.push_back(*decision);
  }
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions[0].step, 1600);
  EXPECT_THAT(decisions[0].reason, HasSubstr("exactly 0"));
}

TEST(SnrPolicy, ObjectsToAFreezeBeforeTheStartAndToOneOfLiveGradients) {
  SimulatedTraining training = TrainingOf(0.2);
  const auto policy = Snr(training);
  training.steps = 600;
  training.Run(*policy);
  EXPECT_THAT(policy->Objection(3).value_or(""), HasSubstr("step 600 of 4000 is before 40 %"));
  EXPECT_FALSE(policy->Objection(0));
  training.steps = 2000;
  training.Run(*policy, 600);
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("gradient SNR"));
}

TEST(SnrPolicy, DoesNotObjectToWhatItWouldFreeze) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = Snr(training, {.max_modules = 1});
  training.steps = 1600;
  training.Run(*policy);
  EXPECT_FALSE(policy->Objection(3)) << *policy->Objection(3);
}

TEST(SnrPolicy, UnfreezesWhenTheRateRises) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return step < 1620 ? 0.1 : step < 2000 ? 0.05 : step < 2500 ? 0.054 : 0.06; };
  const std::vector<Decision> decisions = RunOf(training);
  std::vector<std::pair<int64_t, int>> unfreezes;
  for (const Decision& decision : decisions) {
    if (decision.action == Action::kUnfreeze) unfreezes.emplace_back(decision.step, decision.frozen_prefix);
  }
  // Modules 0 and 1 froze at 0.1, the others at 0.05; 8 % is no rise.
  ASSERT_THAT(unfreezes, SizeIs(1));
  EXPECT_EQ(unfreezes[0].first, 2500);
  EXPECT_EQ(unfreezes[0].second, 2);
}

TEST(SnrPolicy, StaysFrozenWhenTheRateDrops) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return step < 2400 ? 0.1 : 0.01; };
  for (const Decision& decision : RunOf(training)) EXPECT_EQ(decision.action, Action::kFreeze);
}

TEST(SnrPolicy, ForgetsReadingsOfBeforeADrop) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 1580 ? 0.3 : 0.003; };
  training.rate = [](int64_t step) { return step < 1580 ? 0.1 : 0.01; };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_FALSE(decisions.empty());
  // With the 90 readings of before the freeze would wait until they have gone.
  EXPECT_LE(decisions[0].step, 1800);
}

TEST(SnrPolicy, SaysThatOnePartTellsNothing) {
  SimulatedTraining training = TrainingOf(0.003);
  training.parts = 1;
  const auto policy = Snr(training);
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_THAT(policy->status().blocked, HasSubstr("[ONE_PART]"));
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("[ONE_PART]"));
}

TEST(SnrPolicy, SaysThatNobodyTellsOfGradients) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = nullptr;
  const auto policy = Snr(training);
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_THAT(policy->status().blocked, HasSubstr("[NO_GRADIENTS] a check is due since step 1600"));
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("0 gradient readings"));
}

TEST(SnrPolicy, OfAnUnknownTotalStartsAtAHundredthOfThePeakRate) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.total_steps = 0;
  training.rate = [](int64_t step) { return step < 1000 ? 0.1 : step < 2000 ? 0.01 : 0.001; };
  const auto policy = Snr(training);
  training.steps = 1999;
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("has not fallen to a hundredth of its peak"));
  EXPECT_EQ(training.gradient_readings, 0);
  training.steps = 4000;
  const std::vector<Decision> decisions = training.Run(*policy, 1999);
  ASSERT_FALSE(decisions.empty());
  EXPECT_GE(decisions[0].step, 2000 + 16 * 6);
  SimulatedTraining constant = TrainingOf(0.003);
  constant.shape.total_steps = 0;
  EXPECT_THAT(RunOf(constant), IsEmpty());
}

TEST(SnrPolicy, ScalesItsThresholdWithTheBatch) {
  SimulatedTraining training = TrainingOf(0.1);
  EXPECT_THAT(RunOf(training), IsEmpty());
  training.samples = 1024;  // .05 becomes .46
  EXPECT_FALSE(RunOf(training).empty());
}

TEST(SnrPolicy, IsStricterInTheLastThirdOfTheTime) {
  SnrConfig config{{.threshold = 0.2, .late_threshold = 0.001}};
  SimulatedTraining training = TrainingOf(0.02);
  training.shape.step_shares = {0.4, 0.3, 0.1, 0.1, 0.05, 0.05};
  const std::vector<Decision> decisions = RunOf(training, config);
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions.back().frozen_prefix, 2) << "module 2 begins at .7 of the time";
}

TEST(SnrPolicy, OfOneRankSamplesSeldomAndFromNotLongBeforeTheStart) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.ranks = 1;
  const auto policy = Snr(training);
  training.steps = 1199;
  training.Run(*policy);
  EXPECT_EQ(training.gradient_readings, 0);
  training.steps = 1600;
  const std::vector<Decision> decisions = training.Run(*policy, 1199);
  EXPECT_EQ(policy->gradient_monitoring()->interval_steps, 20);
  EXPECT_EQ(training.gradient_readings, 20);
}

// A slow decay leaves readings in the window; it must not keep everything from freezing at its end.
TEST(SnrPolicy, FreezesToTheEndOfACosine) {
  SimulatedTraining training = TrainingOf(0);
  training.tick = 20;
  training.rate = [](int64_t step) { return Cosine(step - step % 20, 4000); };
  training.snr = [&](int, int64_t step) { return 4 * training.rate(step); };
  training.dimensions = 300;
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_FALSE(decisions.empty());
  EXPECT_GT(decisions.front().step, 3000) << "before, the SNR is over .05";
  EXPECT_EQ(decisions.back().frozen_prefix, kModules - 2);
}

TEST(SnrPolicy, FreezesNothingWithItsLastStep) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 3950 ? 0.3 : 0.001; };
  training.rate = [](int64_t step) { return step < 3950 ? 0.1 : 0.001; };
  for (const Decision& decision : RunOf(training)) EXPECT_LT(decision.step, 4000);
}

}  // namespace
}  // namespace egeria::policy
