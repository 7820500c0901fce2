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

std::unique_ptr<Policy> ByClock(const SimulatedTraining& training,
                                AutoConfig config = {.start = 0.85, .lr_area_left = 0.01}) {
  return MakePolicy(config, training.shape).value();
}

std::vector<Decision> RunByClock(SimulatedTraining& training,
                                 AutoConfig config = {.start = 0.85, .lr_area_left = 0.01}) {
  return training.Run(*ByClock(training, config));
}

// Returns what a worker tells of the cosine.
std::vector<double> PlannedCosine() {
  std::vector<double> rates;
  for (int64_t point = 0; point <= 200; ++point) rates.push_back(Cosine(point, 200));
  return rates;
}

TEST(AutoPolicy, FreezesAllWhenLittleOfTheStepsAndOfTheRateIsLeft) {
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

TEST(AutoPolicy, WaitsForTheArea) {
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
  decisions = RunByClock(training, {.start = 0.85, .lr_area_left = 0.04});
  EXPECT_NEAR(static_cast<double>(decisions.at(0).step), 3400, 4) << "not before the start";
  decisions = RunByClock(training, {.start = 0.5, .lr_area_left = 0.04});
  EXPECT_NEAR(static_cast<double>(decisions.at(0).step), 3200, 4);
}

TEST(AutoPolicy, IsVetoedByAClearSignal) {
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

TEST(AutoPolicy, NeverFreezesAtAConstantRate) {
  for (const double snr : {0.3, 0.1, 0.003}) {
    for (const bool planned : {false, true}) {
      SimulatedTraining training = TrainingOf(snr);
      if (planned) training.shape.planned_learning_rates = {0.1, 0.1};
      const auto policy = ByClock(training);
      EXPECT_THAT(training.Run(*policy), IsEmpty()) << snr;
      training.steps = 1000;
      const auto young = ByClock(training);
      training.Run(*young);
      EXPECT_EQ(young->status().blocked.starts_with("[RATES_STAY_HIGH]"), planned) << "what is not planned may change";
      training.steps = 3990;
      const auto earlier = ByClock(training);
      training.Run(*earlier);
      EXPECT_THAT(earlier->Objection(1).value_or(""), HasSubstr("on average 1 times those of the whole training"));
      EXPECT_THAT(earlier->status().blocked, StartsWith("[RATES_STAY_HIGH]"));
    }
  }
}

TEST(AutoPolicy, AdvisesToStopWhereRatesFallSmoothly) {
  SimulatedTraining training = TrainingOf(0.3);
  training.shape.planned_learning_rates = PlannedCosine();
  const auto policy = ByClock(training);
  EXPECT_THAT(policy->status().advice, StartsWith("[STOP_INSTEAD] the last 10 % of the steps have 0.15 % of the area"));
  EXPECT_THAT(policy->advice(), HasSubstr("ends after step 361"));
  training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.001, 0.001};
  EXPECT_THAT(ByClock(training)->advice(), IsEmpty()) << "behind a drop a network gets better fast";
  training.shape.planned_learning_rates = {0.1, 0.1};
  EXPECT_THAT(ByClock(training)->advice(), IsEmpty()) << "the last steps are worth as much as the others";
  training.shape.planned_learning_rates = {};
  EXPECT_THAT(ByClock(training)->advice(), IsEmpty());
}

TEST(AutoPolicy, AsksForNoReadingsWhileTooMuchIsLeft) {
  SimulatedTraining training = TrainingOf(0.003);
  const auto policy = ByClock(training, {.start = 0.85, .lr_area_left = 0.01});
  for (int64_t step = 0; step < 3990; step += 10) {
    Observation observation;
    observation.step = step;
    observation.learning_rate = 0.1;
    policy->Observe(observation);
    ASSERT_FALSE(policy->gradient_monitoring()) << step;
    ASSERT_FALSE(policy->monitoring()) << step;
  }
}

TEST(AutoPolicy, WaitsForReadingsWhenTheRateHasJustFallen) {
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

// No series of plasticity makes the clock freeze, or freeze earlier.
TEST(AutoPolicy, NeverFreezesOnARandomWalk) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    double walk = 1;
    SimulatedTraining training = TrainingOf(0.003);
    training.plasticity = [&](int, int64_t) { return walk = std::abs(walk + 0.1 * normal(random)); };
    if (seed % 2 == 0) training.snr = nullptr;
    const AutoConfig config{.start = 0.85, .lr_area_left = 0.01};
    EXPECT_THAT(RunByClock(training, config), IsEmpty()) << "a constant rate";
    training.shape.planned_learning_rates = PlannedCosine();
    for (const Decision& decision : RunByClock(training, config)) EXPECT_GE(decision.step, 3400);
  }
}

TEST(AutoPolicy, HasNoObjectionPastThePlannedEnd) {
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

// The signal is the same where little of the rate is left and where next to nothing is.
TEST(AutoPolicy, MindsASignalTheLessTheLessCanBeDoneWithIt) {
  SimulatedTraining training = TrainingOf(0.13);
  training.rate = [](int64_t step) { return step < 3000 ? 0.1 : 0.001; };
  training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0088, 0.0088, 0.0088};  // .9 % left at 85 %
  EXPECT_GT(RunByClock(training).at(0).step, 3600);
  training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.001, 0.001, 0.001};  // .1 %
  EXPECT_LE(RunByClock(training).at(0).step, 3404);
}

TEST(AutoPolicy, DoesNotWaitForReadingsThatNobodyTellsOf) {
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

TEST(AutoPolicy, WaitsForReadingsOfARateThatHasJustFallen) {
  SimulatedTraining training = TrainingOf(0);
  training.snr = [](int, int64_t step) { return step < 3396 ? 0.3 : 0.003; };
  training.rate = [](int64_t step) { return step < 3396 ? 0.1 : 0.001; };
  training.shape.planned_learning_rates = PlannedCosine();
  const std::vector<Decision> decisions = RunByClock(training);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_GE(decisions[0].step, 3396 + 16 * 2);
  EXPECT_LE(decisions[0].step, 3396 + 17 * 2 + 4);
}

// Nobody was asked for readings when this check came due.
TEST(AutoPolicy, IsVetoedInAJobThatGoesOnFromACheckpoint) {
  for (const int prefix : {0, 2}) {
    SimulatedTraining training = TrainingOf(0.3);
    training.shape.planned_learning_rates = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01};
    training.shape.first_step = 3500;
    const auto policy = ByClock(training, {.start = 0.85, .lr_area_left = 0.01});
    if (prefix > 0) policy->Adopt(3500, prefix);
    training.steps = 3834;
    EXPECT_THAT(training.Run(*policy, 3500), IsEmpty());
    training.snr = nullptr;
    training.steps = 3900;
    EXPECT_THAT(training.Run(*ByClock(training), 3500), SizeIs(1))
        << "where readings do not come it does not wait forever";
  }
}

TEST(AutoPolicy, ReadsNothingPastThePlannedEnd) {
  SimulatedTraining training = TrainingOf(0.3);
  training.steps = 4100;
  const auto policy = ByClock(training, {.start = 0.5, .lr_area_left = 1});
  EXPECT_THAT(training.Run(*policy), IsEmpty());
  EXPECT_FALSE(policy->gradient_monitoring());
  EXPECT_FALSE(policy->monitoring());
}

TEST(AutoPolicy, ObjectsBeforeItsTime) {
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

// Frozen modules have no gradients by which it could be undone.
TEST(AutoPolicy, LeavesWhatSomebodyElseFroze) {
  SimulatedTraining training = TrainingOf(0.3);
  training.shape.planned_learning_rates = PlannedCosine();
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 600) policy.Adopt(step, 3);
    const auto wanted = policy.gradient_monitoring();
    EXPECT_TRUE(!wanted || wanted->first_module >= policy.frozen_prefix());
  };
  for (const Decision& decision : RunByClock(training)) EXPECT_EQ(decision.action, Action::kFreeze);
}

TEST(AutoPolicy, DoesNotUnfreezeBySignalsThatItFrozeIn) {
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

TEST(AutoPolicy, IsLedByTheSignalWhereTheTotalIsUnknown) {
  SimulatedTraining training = TrainingOf(0.003);
  training.shape.total_steps = 0;
  const PolicyConfig config = Resolve(AutoConfig{{.every = 0.05, .readings = 50}}, training.shape).value();
  ASSERT_TRUE(std::holds_alternative<SnrConfig>(config));
  EXPECT_EQ(std::get<SnrConfig>(config).start, 0.4);
  EXPECT_EQ(std::get<SnrConfig>(config).max_modules, 2);
  EXPECT_EQ(std::get<SnrConfig>(config).every, 0.05);
  EXPECT_EQ(std::get<SnrConfig>(config).readings, 50);
}

}  // namespace
}  // namespace egeria::policy
