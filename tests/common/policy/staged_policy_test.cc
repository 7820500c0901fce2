#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/policy/policy_config.h"
#include "common/policy/training_fractions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

SimulatedTraining TrainingOf(int modules, int64_t total = 1000) {
  SimulatedTraining training;
  training.shape.modules = modules;
  training.shape.total_steps = training.steps = total;
  training.shape.ranks = 2;
  return training;
}

std::vector<std::pair<int64_t, int>> StagesOf(SimulatedTraining& training, const StagedConfig& config = {}) {
  const std::unique_ptr<Policy> policy = MakePolicy(config, training.shape).value();
  std::vector<std::pair<int64_t, int>> stages;
  for (const Decision& decision : training.Run(*policy)) stages.emplace_back(decision.step, decision.frozen_prefix);
  return stages;
}

constexpr StagedConfig kVetoed{.begin = 0.7, .veto = true};

std::string ErrorOf(const StagedConfig& config, const JobShape& shape) {
  return std::string(Resolve(config, shape).status().message());
}

TEST(StagedPolicy, FreezesDeepAtOnceAndAllButTheHeadAtTheEnd) {
  SimulatedTraining training = TrainingOf(6);
  EXPECT_THAT(StagesOf(training), ElementsAre(Pair(800, 3), Pair(850, 4), Pair(900, 5)));
  EXPECT_THAT(StagesOf(training, {.begin = 0.8, .stages = 1}), ElementsAre(Pair(800, 5)));
  EXPECT_THAT(StagesOf(training, {.begin = 0.5, .end = 0.6, .stages = 2, .deepest_prefix = 3}),
              ElementsAre(Pair(500, 2), Pair(600, 3)));
}

TEST(StagedPolicy, MeasuresDepthInTime) {
  SimulatedTraining training = TrainingOf(6);
  training.shape.step_shares = {0.5, 0.1, 0.1, 0.1, 0.1, 0.1};
  // The stages take 3/5 and 4/5 of the .9 that five modules take.
  EXPECT_THAT(StagesOf(training), ElementsAre(Pair(800, 2), Pair(850, 4), Pair(900, 5)));
  EXPECT_THAT(StagesOf(training, {.share = 0.55}), ElementsAre(Pair(800, 1), Pair(900, 2)))
      << "the second stage has nothing to add";
}

TEST(StagedPolicy, CanGoByTheAreaUnderTheLearningRates) {
  SimulatedTraining training = TrainingOf(6);
  EXPECT_THAT(ErrorOf({.area = true}, training.shape), HasSubstr("[BAD_POLICY] area needs planned_learning_rates"));
  training.shape.planned_learning_rates = {1, 0};  // linear: 1 - (1 - x)^2 of the area is done at x
  EXPECT_THAT(StagesOf(training, {.begin = 0.75, .end = 0.99, .stages = 2, .area = true}),
              ElementsAre(Pair(500, 4), Pair(900, 5)));
  training.shape.planned_learning_rates = {0, 0};
  EXPECT_THAT(ErrorOf({.area = true}, training.shape), HasSubstr("not all 0"));
}

TEST(StagedPolicy, NeedsTheTotal) {
  EXPECT_THAT(ErrorOf({}, {6, 0}), HasSubstr("[BAD_POLICY] staged needs total_steps"));
}

TEST(StagedPolicy, PutsOffWhatClearlyCarriesASignal) {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int module, int64_t step) { return step < 3300 && module >= 2 ? 0.4 : 0.005; };
  training.rate = [](int64_t step) { return step < 3300 ? 0.1 : 0.01; };
  const auto stages = StagesOf(training, kVetoed);
  ASSERT_FALSE(stages.empty());
  EXPECT_EQ(stages[0].first, 3400) << "a period later, on readings of the new rate";
  EXPECT_EQ(stages.back().second, 5);
  EXPECT_THAT(StagesOf(training, {.begin = 0.7}), ElementsAre(Pair(2800, 3), Pair(3200, 4), Pair(3600, 5)));
}

// Every rate is more than 10 % over the one before, so that there are never readings enough.
TEST(StagedPolicy, DoesNotWaitForeverForReadingsOfARateThatKeepsRising) {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int, int64_t) { return 0.4; };
  training.rate = [](int64_t step) { return step < 2850 ? 0.1 : std::exp(0.12 * static_cast<double>(step - 2850)); };
  const auto stages = StagesOf(training, kVetoed);
  ASSERT_FALSE(stages.empty());
  EXPECT_LE(stages[0].first, 3000);
}

TEST(StagedPolicy, TakesAFormerStageWhereTheDeeperOneIsPutOff) {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int module, int64_t) { return module >= 3 ? 0.4 : 0.005; };
  EXPECT_THAT(StagesOf(training, kVetoed), ElementsAre(Pair(2800, 3)));
}

TEST(StagedPolicy, IsAClockWithoutASignal) {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int, int64_t) { return 0.4; };
  training.parts = 1;
  EXPECT_THAT(StagesOf(training, kVetoed), ElementsAre(Pair(2800, 3), Pair(3200, 4), Pair(3600, 5)));
}

TEST(StagedPolicy, ObjectsOnlyToAClearSignal) {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int module, int64_t) { return module >= 3 ? 0.4 : 0.005; };
  const auto policy = MakePolicy(kVetoed, training.shape).value();
  EXPECT_FALSE(policy->Objection(5));
  training.steps = 2790;
  training.Run(*policy);
  EXPECT_FALSE(policy->Objection(3));
  EXPECT_THAT(policy->Objection(4).value_or(""), HasSubstr("module 3: gradient SNR"));
}

TEST(StagedPolicy, GoesOnFromWhatSomebodyElseSet) {
  SimulatedTraining training = TrainingOf(6);
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 820) policy.Adopt(step, 0);
  };
  EXPECT_THAT(StagesOf(training), ElementsAre(Pair(800, 3), Pair(850, 4), Pair(900, 5)));
}

// Modules 3 and 4 carry a signal until the rate falls at step 3720.
SimulatedTraining PutOffUntil3720() {
  SimulatedTraining training = TrainingOf(6, 4000);
  training.snr = [](int module, int64_t step) { return module >= 3 && step < 3720 ? 0.4 : 0.005; };
  training.rate = [](int64_t step) { return step < 3720 ? 0.1 : 0.01; };
  return training;
}

TEST(StagedPolicy, StillFreezesWhatWasPutOffWhenSomebodyFroze) {
  SimulatedTraining training = PutOffUntil3720();
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 3700) policy.Adopt(step, 4);
  };
  const auto stages = StagesOf(training, kVetoed);
  ASSERT_FALSE(stages.empty());
  EXPECT_EQ(stages.back().second, 5);
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 3700) policy.Adopt(step, 0);
  };
  EXPECT_THAT(StagesOf(training, kVetoed), ElementsAre(Pair(2800, 3))) << "but not what somebody unfroze";
}

TEST(StagedPolicy, ReadsBeforeItFreezesInAJobThatGoesOnFromACheckpoint) {
  for (const int prefix : {0, 3}) {
    SimulatedTraining training = TrainingOf(6, 4000);
    training.snr = [](int module, int64_t step) { return module >= 3 && step < 3800 ? 0.4 : 0.005; };
    training.rate = [](int64_t step) { return step < 3800 ? 0.1 : 0.01; };
    training.shape.first_step = 3650;
    const std::unique_ptr<Policy> policy = MakePolicy(kVetoed, training.shape).value();
    if (prefix > 0) policy->Adopt(3650, prefix);
    const std::vector<Decision> decisions = training.Run(*policy, 3650);
    ASSERT_FALSE(decisions.empty());
    EXPECT_EQ(decisions[0].step, prefix == 0 ? 3750 : 3900) << "a period later, or when the signal has gone";
    EXPECT_EQ(decisions[0].frozen_prefix, prefix == 0 ? 3 : 5);
    EXPECT_EQ(decisions.back().frozen_prefix, 5);
  }
}

TEST(TrainingFractions, AreaIsThatOfTheLinesBetweenTheRates) {
  EXPECT_EQ(StepAtArea(0.5, {1, 1}, 1000), 500);
  EXPECT_EQ(StepAtArea(0.0, {1, 1}, 1000), 0);
  EXPECT_EQ(StepAtArea(1.0, {1, 1, 0}, 1000), 1000);
  EXPECT_EQ(StepAtArea(0.5, {0, 1}, 1000), 708);     // sqrt(1/2)
  EXPECT_EQ(StepAtArea(0.5, {1, 0, 0}, 1000), 147);  // (1 - sqrt(1/2)) / 2
}

}  // namespace
}  // namespace egeria::policy
