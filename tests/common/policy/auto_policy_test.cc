#include "common/policy/auto_policy.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/policy/replay.h"
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

constexpr int kModules = 6;

SimulatedTraining TrainingOf(double snr, int64_t total = 4000) {
  SimulatedTraining training;
  training.shape.modules = kModules;
  training.shape.total_steps = training.steps = total;
  training.shape.ranks = 2;
  training.tick = 4;
  training.snr = [snr](int, int64_t) { return snr; };
  return training;
}

std::unique_ptr<Policy> ByClock(const SimulatedTraining& training,
                                AutoConfig config = {.start = 0.85, .area_left = 0.01}) {
  return MakePolicy(config, training.shape).value();
}

std::vector<Decision> RunByClock(SimulatedTraining& training, AutoConfig config = {.start = 0.85, .area_left = 0.01}) {
  return training.Run(*ByClock(training, config));
}

// Led by the signal.
std::unique_ptr<Policy> Auto(const SimulatedTraining& training, AutoConfig config = {}) {
  config.signal_led = true;
  if (!config.second_opinion) config.second_opinion = true;  // as in a longer training
  return MakePolicy(config, training.shape).value();
}

std::vector<Decision> RunOf(SimulatedTraining& training, AutoConfig config = {}) {
  return training.Run(*Auto(training, config));
}

double Cosine(int64_t step, int64_t total) {
  return 0.05 * (1 + std::cos(3.14159265358979 * static_cast<double>(step) / static_cast<double>(total)));
}

// What a worker tells of it.
std::vector<double> PlannedCosine() {
  std::vector<double> rates;
  for (int64_t point = 0; point <= 200; ++point) rates.push_back(Cosine(point, 200));
  return rates;
}

TEST(AutoPolicyByClock, FreezesAllWhenLittleOfTheStepsAndOfTheRateIsLeft) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return Cosine(step, 4000); };
  training.shape.planned_learning_rates = PlannedCosine();
  const std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_GE(decisions[0].step, 3400);
  EXPECT_LE(decisions[0].step, 3404) << "85 %, where .55 % of the area is left";
  EXPECT_EQ(decisions[0].frozen_prefix, kModules - 1);
  EXPECT_THAT(decisions[0].reason, HasSubstr("of 4000, 0.549 % of the area under the learning rates to come; "
                                             "modules 0 to 4: gradient SNR"));
}

TEST(AutoPolicyByClock, WaitsForTheArea) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return 0.1 * (1 - static_cast<double>(step) / 4000); };
  std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_GE(decisions[0].step, 3600) << "no plan: a bound, looked at every 2.5 % of the steps";
  EXPECT_LE(decisions[0].step, 3804);
  training.shape.planned_learning_rates = {0.1, 0};
  decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_NEAR(static_cast<double>(decisions[0].step), 3600, 4) << "(1 - .9)^2 = 1 %";
  decisions = RunByClock(training, {.start = 0.85, .area_left = 0.04});
  EXPECT_NEAR(static_cast<double>(decisions.at(0).step), 3400, 4) << "not before the start";
  decisions = RunByClock(training, {.start = 0.5, .area_left = 0.04});
  EXPECT_NEAR(static_cast<double>(decisions.at(0).step), 3200, 4);
}

TEST(AutoPolicyByClock, IsVetoedByAClearSignal) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedTraining training = TrainingOf(0.3);
    training.seed = seed;
    EXPECT_THAT(RunByClock(training), IsEmpty()) << "a constant rate with live gradients";
    training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01};
    const auto policy = ByClock(training);
    training.steps = 3834;
    EXPECT_THAT(training.Run(*policy), IsEmpty());
    EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("gradient SNR"));
    EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("is over 0.1")) << "1 % over .5 %, times .05";
  }
}

TEST(AutoPolicyByClock, NeverFreezesAtAConstantRate) {
  for (const double snr : {0.3, 0.1, 0.003}) {
    for (const bool planned : {false, true}) {
      SimulatedTraining training = TrainingOf(snr);
      if (planned) training.shape.planned_learning_rates = {0.1, 0.1};
      const auto policy = ByClock(training);
      EXPECT_THAT(training.Run(*policy), IsEmpty()) << snr;
      training.steps = 1000;
      const auto young = ByClock(training);
      training.Run(*young);
      EXPECT_EQ(young->status().blocked, "") << "before the start nothing is to freeze anyway";
      training.steps = 3990;
      const auto earlier = ByClock(training);
      training.Run(*earlier);
      EXPECT_THAT(earlier->Objection(1).value_or(""), HasSubstr("on average 1 times those of the whole training"));
      EXPECT_THAT(earlier->status().blocked, StartsWith("[RATES_STAY_HIGH]"));
    }
  }
}

TEST(AutoPolicyByClock, AsksForNoReadingsWhileTooMuchIsLeft) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = ByClock(training, {.start = 0.85, .area_left = 0.01, .second_opinion = true});
  for (int64_t step = 0; step < 3990; step += 10) {
    Observation observation;
    observation.step = step;
    observation.learning_rate = 0.1;
    policy->Observe(observation);
    ASSERT_FALSE(policy->gradient_monitoring()) << step;
    ASSERT_FALSE(policy->monitoring()) << step;
  }
}

TEST(AutoPolicyByClock, WaitsForReadingsWhenTheRateHasJustFallen) {
  for (const double snr : {0.3, 0.003}) {
    SimulatedTraining training = TrainingOf(snr);
    training.rate = [](int64_t step) { return step < 3500 ? 0.1 : 0.005; };  // .7 % of the area is left then
    const std::vector<Decision> decisions = RunByClock(training);
    ASSERT_FALSE(decisions.empty());
    if (snr < 0.05) {
      EXPECT_GE(decisions[0].step, 3500);
      EXPECT_LE(decisions[0].step, 3750);
      EXPECT_THAT(decisions[0].reason, HasSubstr("gradient SNR"));
    } else {
      EXPECT_GE(decisions[0].step, 3850) << "live gradients, until next to nothing is left";
    }
  }
}

// Plasticity is a second opinion only: no series of it makes the clock freeze, or freeze earlier.
TEST(AutoPolicyByClock, NeverFreezesOnARandomWalk) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    double walk = 1;
    SimulatedTraining training = TrainingOf(0.003);
    training.plasticity = [&](int, int64_t) { return walk = std::abs(walk + 0.1 * normal(random)); };
    if (seed % 2 == 0) training.snr = nullptr;
    const AutoConfig config{.start = 0.85, .area_left = 0.01, .second_opinion = true};
    EXPECT_THAT(RunByClock(training, config), IsEmpty()) << "a constant rate";
    training.shape.planned_learning_rates = PlannedCosine();
    for (const Decision& decision : RunByClock(training, config)) EXPECT_GE(decision.step, 3400);
  }
}

TEST(AutoPolicyByClock, HasNoObjectionPastThePlannedEnd) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return Cosine(step, 4000); };
  training.shape.planned_learning_rates = PlannedCosine();
  const auto policy = ByClock(training);
  training.meddle = [](int64_t step, Policy& meddled) {
    if (step == 4001) meddled.Adopt(step, 0);
  };
  training.steps = 4004;
  training.Run(*policy);
  EXPECT_EQ(policy->Objection(1), std::nullopt);
}

// The same signal, where little of the rate is left and where next to nothing is.
TEST(AutoPolicyByClock, MindsASignalTheLessTheLessCanBeDoneWithIt) {
  SimulatedTraining training = TrainingOf(0.13);
  training.rate = [](int64_t step) { return step < 3000 ? 0.1 : 0.001; };
  training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0088, 0.0088, 0.0088};  // .9 % left at 85 %
  EXPECT_GT(RunByClock(training).at(0).step, 3600);
  training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.001, 0.001, 0.001};  // .1 %
  EXPECT_LE(RunByClock(training).at(0).step, 3404);
}

TEST(AutoPolicyByClock, DoesNotWaitForReadingsThatNobodyTellsOf) {
  SimulatedTraining training = TrainingOf(0);
  training.shape.planned_learning_rates = PlannedCosine();
  training.snr = nullptr;
  EXPECT_LE(RunByClock(training).at(0).step, 3404);
  training.snr = [](int, int64_t) { return 0.3; };
  training.parts = 1;
  const auto policy = ByClock(training);
  EXPECT_LE(training.Run(*policy).at(0).step, 3404);
  EXPECT_EQ(policy->status().blocked, "");
}

TEST(AutoPolicyByClock, WaitsForReadingsOfARateThatHasJustFallen) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 3396 ? 0.3 : 0.003; };
  training.rate = [](int64_t step) { return step < 3396 ? 0.1 : 0.001; };
  training.shape.planned_learning_rates = PlannedCosine();
  const std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_GE(decisions[0].step, 3396 + 16 * 2);
  EXPECT_LE(decisions[0].step, 3396 + 17 * 2 + 4);
}

// Nobody was asked for readings when such a check came due.
TEST(AutoPolicyByClock, IsVetoedInAJobThatGoesOnFromACheckpoint) {
  for (const int prefix : {0, 2}) {
    SimulatedTraining training = TrainingOf(0.3);
    training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01};
    training.shape.first_step = 3500;
    const auto policy = ByClock(training, {.start = 0.85, .area_left = 0.01, .reprobe_every = 0});
    if (prefix > 0) policy->Adopt(3500, prefix);
    training.steps = 3834;
    EXPECT_THAT(training.Run(*policy, 3500), IsEmpty());
    training.snr = nullptr;
    training.steps = 3900;
    EXPECT_THAT(training.Run(*ByClock(training), 3500), SizeIs(1))
        << "where readings do not come it does not wait forever";
  }
}

TEST(AutoPolicyByClock, ReadsNothingPastThePlannedEnd) {
  SimulatedTraining training = TrainingOf(0.3);
  training.steps = 4100;
  for (const bool by_clock : {false, true}) {
    const AutoConfig config{.start = 0.5, .area_left = 1, .second_opinion = true};
    const auto policy = by_clock ? ByClock(training, config) : Auto(training);
    EXPECT_THAT(training.Run(*policy), IsEmpty());
    EXPECT_FALSE(policy->gradient_monitoring());
    EXPECT_FALSE(policy->monitoring());
  }
}

// Workers that cannot look at what is frozen: the active modules' readings must not wait for them.
TEST(AutoPolicyByClock, GivesUpAProbeOfWhichItHearsNothing) {
  SimulatedTraining training = TrainingOf(0.003, 20'000);
  training.shape.planned_learning_rates = PlannedCosine();
  training.rate = [](int64_t step) { return Cosine(step, 20'000); };
  const auto snr = training.snr;
  int64_t probing = 0, frozen = 0;
  training.meddle = [&](int64_t step, Policy& policy) {
    if (step == 12'000) policy.Adopt(step, 2);
    const auto wanted = policy.gradient_monitoring();
    const bool of_frozen = wanted && wanted->first_module < policy.frozen_prefix();
    training.snr = of_frozen ? nullptr : snr;
    frozen += policy.frozen_prefix() > 0;
    probing += of_frozen;
  };
  const std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_THAT(decisions[0].reason, HasSubstr("modules 0 to 4: gradient SNR"))
      << "readings of the active ones have come";
  EXPECT_LE(decisions[0].step, 17'004);
  EXPECT_GT(probing, 0);
  EXPECT_LT(4 * probing, frozen) << "the next probe is ever farther away";
}

// As where every other reading is of a step with fewer micro-batches.
TEST(AutoPolicyByClock, UndoesWhatIsForcedThoughTheNumberOfPartsVaries) {
  SimulatedTraining training = TrainingOf(0.3);
  training.shape.planned_learning_rates = PlannedCosine();
  const auto policy = ByClock(training);
  policy->Adopt(600, 3);
  SimulatedGradients two(1, 2), three(2, 3);
  std::optional<Decision> decision;
  for (int64_t step = 601; step < 700 && !decision; ++step) {
    SimulatedGradients& gradients = step % 2 == 0 ? two : three;
    decision = policy->Observe({.step = step,
                                .learning_rate = 0.1,
                                .gradients = gradients.Reading(step, 0, std::vector<double>(kModules, 0.3))});
  }
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->frozen_prefix, 0) << decision->reason;
}

TEST(AutoPolicyByClock, ObjectsBeforeItsTime) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = ByClock(training, {.start = 0.5});
  training.steps = 1000;
  training.Run(*policy);
  EXPECT_THAT(policy->Objection(3).value_or(""), HasSubstr("step 1000 of 4000 is before 50 %"));
  training.steps = 3000;
  training.Run(*policy, 1000);
  EXPECT_THAT(policy->Objection(3).value_or(""),
              HasSubstr("25 % of the area under the learning rates is still to come"));
}

// A clear signal, and two of which a probe cannot tell.
TEST(AutoPolicyByClock, UndoesWhatIsForcedPastItsVeto) {
  for (const double snr : {0.3, 0.1, 0.05}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SimulatedTraining training = TrainingOf(snr);
      training.seed = seed;
      training.shape.planned_learning_rates = PlannedCosine();
      training.meddle = [](int64_t step, Policy& policy) {
        if (step == 600) policy.Adopt(step, 3);
      };
      const std::vector<Decision> decisions = RunByClock(training);
      ASSERT_GE(decisions.size(), 2u) << snr << ", seed " << seed;
      EXPECT_EQ(decisions[0].action, Action::kUnfreeze);
      EXPECT_EQ(decisions[0].frozen_prefix, 0) << decisions[0].reason;
      EXPECT_LE(decisions[0].step, 620) << "16 readings, one each step, from a tick on";
      EXPECT_GE(decisions[1].step, 3400);
    }
  }
}

TEST(AutoPolicyByClock, LeavesAForcedFreezeOfWhatIsSurelyNoise) {
  SimulatedTraining training = TrainingOf(0.0005);
  training.dimensions = 6'000;
  training.shape.planned_learning_rates = PlannedCosine();
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 600) policy.Adopt(step, 3);
  };
  const std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_GE(decisions[0].step, 3400);
}

// What was no reason against the freeze is none against leaving it: the probe's thresholds rise as well.
TEST(AutoPolicyByClock, DoesNotUnfreezeBySignalsThatItFrozeIn) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimulatedTraining training = TrainingOf(0.06, 20'000);
    training.seed = seed;
    training.shape.planned_learning_rates = PlannedCosine();
    const std::vector<Decision> decisions = RunByClock(training);
    ASSERT_THAT(decisions, Not(IsEmpty()));
    EXPECT_LE(decisions[0].step, 17'004);
    for (const Decision& decision : decisions) EXPECT_EQ(decision.action, Action::kFreeze) << "seed " << seed;
  }
}

TEST(AutoPolicyByClock, NeedsTheTotal) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.total_steps = 0;
  EXPECT_THAT(MakePolicy(AutoConfig{.signal_led = false}, training.shape).status().message(), HasSubstr("total_steps"));
}

TEST(AutoPolicy, FreezesNoiseLateAndAFewModulesAtATime) {
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

TEST(AutoPolicy, AsksForGradientsOnlyFromShortlyBeforeTheStart) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = Auto(training);
  training.steps = 1399;
  training.Run(*policy);
  EXPECT_EQ(training.gradient_readings, 0);
  training.steps = 1600;
  training.Run(*policy, 1399);
  EXPECT_GE(training.gradient_readings, 98) << "100 readings, 2 steps apart, before step 1600";
  EXPECT_LE(training.gradient_readings, 101);
}

TEST(AutoPolicy, NeverFreezesAtAConstantRateWithLiveGradients) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const int parts : {2, 4}) {
      SimulatedTraining training = TrainingOf(0.2);
      training.seed = seed;
      training.parts = parts;
      EXPECT_THAT(RunOf(training), IsEmpty()) << "seed " << seed << ", " << parts << " parts";
    }
  }
}

// The walk is of the plasticity; without gradients nothing is known of noise, with live ones they decide.
TEST(AutoPolicy, NeverFreezesOnARandomWalk) {
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

TEST(AutoPolicy, WaitsWhilePlasticityRises) {
  SimulatedTraining training = TrainingOf(0.003);
  training.plasticity = [](int, int64_t step) {
    return step < 2000 ? 0.001 * std::exp(0.02 * static_cast<double>(step - 1000)) : 1;
  };
  const std::vector<Decision> rising = RunOf(training);
  ASSERT_FALSE(rising.empty());
  EXPECT_GE(rising[0].step, 2000);
  training.plasticity = [](int, int64_t) { return 0.001; };
  EXPECT_LE(RunOf(training).at(0).step, 1610);
  training.plasticity = [](int, int64_t step) { return static_cast<double>(step * step * step); };
  EXPECT_LE(RunOf(training, {.second_opinion = false}).at(0).step, 1610);
}

TEST(AutoPolicy, FreezesModulesWhoseLearningRateIsZeroAtOnce) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t step) { return step < 8 ? 0 : 2; };
  const auto policy = Auto(training);
  EXPECT_FALSE(policy->Objection(0));
  const std::vector<Decision> decisions = training.Run(*policy);
  // They have live gradients, which no re-probe holds against them.
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 2);
  EXPECT_EQ(decisions[0].step, 8);
  EXPECT_THAT(decisions[0].reason, HasSubstr("modules 0 to 1: their learning rates are 0"));
  EXPECT_TRUE(policy->Objection(3));
}

TEST(AutoPolicy, UnfreezesModulesWhoseLearningRateIsZeroNoMore) {
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

TEST(AutoPolicy, LeavesToItsOperatorWhatAZeroRateWouldFreeze) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t step) { return step < 200 ? 2 : 0; };
  bool unfrozen = false;
  training.meddle = [&](int64_t step, Policy& policy) {
    if (step == 100) policy.Adopt(step, 0);
    unfrozen = unfrozen || (step > 100 && policy.frozen_prefix() == 0);
  };
  const auto policy = Auto(training);
  EXPECT_THAT(training.Run(*policy), SizeIs(1)) << "and the end of the zero rate unfreezes nothing that is active";
  EXPECT_TRUE(unfrozen);
}

TEST(AutoPolicy, FreezesAnewWhatHasNoRateWhereTrainingGoesOnFromBeforeTheFreeze) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t) { return 2; };
  training.steps = 100;
  const auto policy = Auto(training);
  EXPECT_THAT(training.Run(*policy), SizeIs(1));
  policy->Adopt(50, 0);
  EXPECT_THAT(training.Run(*policy, 50), SizeIs(1));
  EXPECT_EQ(policy->frozen_prefix(), 2);
}

TEST(AutoPolicy, UnfreezesNoModuleOfZeroRateWhenOthersRatesRise) {
  SimulatedTraining training = TrainingOf(0.3);
  training.zero_lr_prefix = [](int64_t) { return 2; };
  training.rate = [](int64_t step) { return step < 400 ? 0.01 : 0.1; };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 2);
}

TEST(AutoPolicy, FreezesModulesWhoseGradientsAreExactlyZero) {
  SimulatedTraining training = TrainingOf(0.3);
  const auto policy = Auto(training);
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

TEST(AutoPolicy, ObjectsToAFreezeBeforeTheStartAndToOneOfLiveGradients) {
  SimulatedTraining training = TrainingOf(0.2);
  const auto policy = Auto(training);
  training.steps = 600;
  training.Run(*policy);
  EXPECT_THAT(policy->Objection(3).value_or(""), HasSubstr("step 600 of 4000 is before 40 %"));
  EXPECT_FALSE(policy->Objection(0));
  training.steps = 2000;
  training.Run(*policy, 600);
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("gradient SNR"));
}

TEST(AutoPolicy, DoesNotObjectToWhatItWouldFreeze) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = Auto(training, {.most_modules = 1});
  training.steps = 1600;
  training.Run(*policy);
  EXPECT_FALSE(policy->Objection(3)) << *policy->Objection(3);
}

TEST(AutoPolicy, UndoesAForcedFreezeByTwoProbes) {
  int undone = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedTraining training = TrainingOf(0.2);
    training.seed = seed;
    training.meddle = [](int64_t step, Policy& policy) {
      if (step == 1700) policy.Adopt(step, 3);
    };
    const std::vector<Decision> decisions = RunOf(training);
    if (decisions.empty()) continue;
    ++undone;
    EXPECT_EQ(decisions[0].action, Action::kUnfreeze);
    EXPECT_THAT(decisions[0].reason, HasSubstr("two probes in a row"));
    EXPECT_LE(decisions[0].frozen_prefix, 1) << "all modules are bad";
    EXPECT_LE(decisions[0].step, 1800) << "two probes of mostly 16 readings, one each step, after step 1700";
  }
  EXPECT_EQ(undone, 20);
}

TEST(AutoPolicy, UnfreezesFromTheFirstBadModuleOn) {
  SimulatedTraining training = TrainingOf(0);
  training.dimensions = 600;
  training.snr = [](int module, int64_t) { return module < 2 ? 0.005 : 0.3; };
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 2000) policy.Adopt(step, 4);
  };
  const std::vector<Decision> decisions = RunOf(training);
  const auto unfreeze = std::find_if(decisions.begin(), decisions.end(),
                                     [](const Decision& decision) { return decision.action == Action::kUnfreeze; });
  ASSERT_NE(unfreeze, decisions.end());
  EXPECT_EQ(unfreeze->frozen_prefix, 2);
}

// Two probes of five modules each, with errors that two in a row make unlikely.
TEST(AutoPolicy, LeavesAGoodFreezeThroughItsProbes) {
  int unfreezes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SimulatedTraining training = TrainingOf(0.005);
    training.seed = seed;
    for (const Decision& decision : RunOf(training)) unfreezes += decision.action == Action::kUnfreeze;
  }
  EXPECT_LE(unfreezes, 1);
}

TEST(AutoPolicy, ProbesWhatIsFrozenNowAndThen) {
  SimulatedTraining training = TrainingOf(0.003);
  std::vector<int64_t> begun;
  bool probing = false;
  training.meddle = [&](int64_t step, Policy& policy) {
    const auto wanted = policy.gradient_monitoring();
    const bool now = policy.frozen_prefix() > 0 && wanted && wanted->first_module == 0;
    if (now && !probing) begun.push_back(step);
    probing = now;
  };
  RunOf(training, {.least_readings = 4});
  ASSERT_GE(begun.size(), 7u);  // 2200 steps, a probe of 4 readings 2 steps apart and 200 steps until the next
  for (size_t i = 1; i < begun.size(); ++i) EXPECT_GE(begun[i] - begun[i - 1], 200);
  begun.clear();
  RunOf(training);
  ASSERT_GE(begun.size(), 2u);
  for (size_t i = 1; i < begun.size(); ++i) EXPECT_GE(begun[i] - begun[i - 1], 50 * 16) << "they would cost too much";
  SimulatedTraining unprobed = TrainingOf(0.003);
  unprobed.meddle = training.meddle;
  begun.clear();
  RunOf(unprobed, {.reprobe_every = 0});
  EXPECT_THAT(begun, IsEmpty());
}

TEST(AutoPolicy, UnfreezesWhenTheRateRises) {
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

TEST(AutoPolicy, StaysFrozenWhenTheRateDrops) {
  SimulatedTraining training = TrainingOf(0.003);
  training.rate = [](int64_t step) { return step < 2400 ? 0.1 : 0.01; };
  for (const Decision& decision : RunOf(training)) EXPECT_EQ(decision.action, Action::kFreeze);
}

TEST(AutoPolicy, ForgetsReadingsOfBeforeADrop) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 1580 ? 0.3 : 0.003; };
  training.rate = [](int64_t step) { return step < 1580 ? 0.1 : 0.01; };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_FALSE(decisions.empty());
  // With the 90 readings of before it would take until they have gone.
  EXPECT_LE(decisions[0].step, 1800);
}

TEST(AutoPolicy, SaysThatOnePartTellsNothing) {
  SimulatedTraining training = TrainingOf(0.003);
  training.parts = 1;
  const auto policy = Auto(training);
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_THAT(policy->status().blocked, HasSubstr("[ONE_PART]"));
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("[ONE_PART]"));
}

TEST(AutoPolicy, SaysThatNobodyTellsOfGradients) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = nullptr;
  const auto policy = Auto(training);
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_THAT(policy->status().blocked, HasSubstr("[NO_GRADIENTS] a check is due since step 1600"));
  EXPECT_THAT(policy->Objection(1).value_or(""), HasSubstr("0 gradient readings"));
}

TEST(AutoPolicy, OfAnUnknownTotalStartsAtAHundredthOfThePeakRate) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.total_steps = 0;
  training.rate = [](int64_t step) { return step < 1000 ? 0.1 : step < 2000 ? 0.01 : 0.001; };
  const auto policy = Auto(training);
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

TEST(AutoPolicy, ScalesItsThresholdWithTheBatch) {
  SimulatedTraining training = TrainingOf(0.1);
  EXPECT_THAT(RunOf(training), IsEmpty());
  training.samples = 1024;  // .05 becomes .46
  EXPECT_FALSE(RunOf(training).empty());
}

TEST(AutoPolicy, IsStricterInTheLastThirdOfTheTime) {
  AutoConfig config{.threshold = 0.2, .late_threshold = 0.001};
  SimulatedTraining training = TrainingOf(0.02);
  training.shape.step_shares = {0.4, 0.3, 0.1, 0.1, 0.05, 0.05};
  const std::vector<Decision> decisions = RunOf(training, config);
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions.back().frozen_prefix, 2) << "module 2 begins at .7 of the time";
}

TEST(AutoPolicy, OfOneRankSamplesSeldomAndFromNotLongBeforeTheStart) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.ranks = 1;
  const auto policy = Auto(training);
  training.steps = 1199;
  training.Run(*policy);
  EXPECT_EQ(training.gradient_readings, 0);
  training.steps = 1600;
  const std::vector<Decision> decisions = training.Run(*policy, 1199);
  EXPECT_EQ(policy->gradient_monitoring()->interval_steps, 20);
  EXPECT_EQ(training.gradient_readings, 20);
}

// A slow decay leaves readings in the window; it must not keep everything from freezing at its end.
TEST(AutoPolicy, FreezesToTheEndOfACosine) {
  SimulatedTraining training = TrainingOf(0);
  training.tick = 20;
  training.rate = [](int64_t step) { return Cosine(step - step % 20, 4000); };
  training.snr = [&](int, int64_t step) { return 4 * training.rate(step); };
  training.dimensions = 300;
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_FALSE(decisions.empty());
  EXPECT_GT(decisions.front().step, 3000) << "before, the SNR is over .05";
  EXPECT_EQ(decisions.back().frozen_prefix, kModules - 1);
}

TEST(AutoPolicy, FreezesNothingWithItsLastStep) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 3950 ? 0.3 : 0.001; };
  training.rate = [](int64_t step) { return step < 3950 ? 0.1 : 0.001; };
  for (const Decision& decision : RunOf(training)) EXPECT_LT(decision.step, 4000);
}

// A recording of what it saw gives the same decisions, and so does a policy that was rebuilt in the middle.
TEST(AutoPolicy, IsAFunctionOfItsObservations) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int module, int64_t step) { return step < 2000 || module == 3 ? 0.12 : 0.01; };
  training.rate = [](int64_t step) { return step < 2000 ? 0.1 : step < 3200 ? 0.01 : 0.02; };
  training.plasticity = [](int module, int64_t step) { return 1.0 / static_cast<double>(module + step); };
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 500) policy.Adopt(step, 2);
  };
  const std::vector<Decision> decisions = RunOf(training);
  ASSERT_GE(decisions.size(), 3u);

  std::vector<Recorded> recording;
  RecordingParser parser;
  bool adopted = false;
  for (const Observation& observation : training.observations) {
    if (observation.step >= 500 && !std::exchange(adopted, true)) {
      recording.push_back(parser.ParseLine(FormatAdoption(500, 2)).value().value());
    }
    recording.push_back(parser.ParseLine(FormatObservation(observation)).value().value());
  }
  const auto fresh = Auto(training);
  const std::vector<Decision> replayed = Replay(recording, kModules, *fresh).value();
  ASSERT_EQ(replayed.size(), decisions.size());
  for (size_t i = 0; i < decisions.size(); ++i) {
    EXPECT_EQ(replayed[i].step, decisions[i].step);
    EXPECT_EQ(replayed[i].frozen_prefix, decisions[i].frozen_prefix);
    EXPECT_EQ(replayed[i].reason, decisions[i].reason);
  }
}

}  // namespace
}  // namespace egeria::policy
