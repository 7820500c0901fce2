// These are tests of the freezes of the policy "auto" before its start.
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int64_t kSteps = 4000;

// Returns a language model that is fine-tuned: its embedding takes 40 % of the time and makes 1 % of the progress,
// though its gradients are no noise.
SimulatedTraining FineTuning() {
  SimulatedTraining training;
  training.shape.modules = 4;
  training.shape.ranks = 2;
  training.shape.total_steps = training.steps = kSteps;
  training.shape.step_shares = {0.24, 0.12, 0.12, 0.12};
  for (int point = 0; point <= 100; ++point)
    training.shape.planned_learning_rates.push_back(1e-3 * (1 - point / 100.0));
  training.rate = [](int64_t step) { return 1e-3 * (1 - static_cast<double>(step) / kSteps); };
  training.tick = 4;
  training.snr = [](int, int64_t) { return 0.3; };
  training.progress = [random = std::make_shared<std::mt19937_64>(1)](int module, int64_t) {
    std::normal_distribution<double> noise(0, 0.1);
    return (module == 0 ? 0.01 : 0.33) + noise(*random) * (module == 0 ? 0.05 : 1);
  };
  return training;
}

std::unique_ptr<Policy> Auto(const SimulatedTraining& training, AutoConfig config = {}) {
  return MakePolicy(config, training.shape).value();
}

TEST(AutoPolicyEarly, FreezesWhatTakesTimeAndLearnsNextToNothing) {
  SimulatedTraining training = FineTuning();
  training.steps = 3000;
  const std::vector<Decision> decisions = training.Run(*Auto(training));
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 1);
  EXPECT_GE(decisions[0].step, 1600) << "nothing freezes before 40 % of the steps";
  EXPECT_LE(decisions[0].step, 1800);
  EXPECT_THAT(decisions[0].reason, StartsWith("modules 0 to 0 take 40 % of the time and make "));
}

TEST(AutoPolicyEarly, MeasuresNothingForItInAShortTraining) {
  SimulatedTraining training = FineTuning();
  training.shape.total_steps = training.steps = 280;
  training.rate = [](int64_t step) { return 1e-3 * (1 - static_cast<double>(step) / 280); };
  training.tick = 1;
  training.steps = 210;
  EXPECT_THAT(training.Run(*Auto(training)), IsEmpty());
  EXPECT_EQ(training.gradient_readings, 0);
  training.shape.embedding_prefix = 1;
  const std::vector<Decision> decisions = training.Run(*Auto(training));
  ASSERT_THAT(decisions, SizeIs(1)) << "lookup tables freeze without";
  EXPECT_EQ(decisions[0].frozen_prefix, 1);
  EXPECT_NEAR(static_cast<double>(decisions[0].step), 112, 8) << "from 40 % of the steps on";
  EXPECT_EQ(training.gradient_readings, 0);
}

TEST(AutoPolicyEarly, DoesNotWhereItIsSwitchedOff) {
  SimulatedTraining training = FineTuning();
  training.steps = 3000;
  EXPECT_THAT(training.Run(*Auto(training, {.early_share = 0})), IsEmpty());
  EXPECT_EQ(training.gradient_readings, 0) << "and measures nothing for it";
}

TEST(AutoPolicyEarly, DoesNotAtAConstantRate) {
  SimulatedTraining training = FineTuning();
  training.rate = [](int64_t) { return 1e-3; };
  training.shape.planned_learning_rates.assign(101, 1e-3);
  EXPECT_THAT(training.Run(*Auto(training)), IsEmpty());
  EXPECT_EQ(training.gradient_readings, 0);
}

TEST(AutoPolicyEarly, DoesNotWhereRatesHardlyFall) {
  SimulatedTraining training = FineTuning();
  training.steps = 2900;
  // The rates fall to a half: those to come are on average .87 of all rates' mean at 40 % of the steps, .75 at 75 %.
  training.rate = [](int64_t step) { return 1e-3 * (1 - 0.5 * static_cast<double>(step) / kSteps); };
  training.shape.planned_learning_rates.clear();
  for (int point = 0; point <= 100; ++point)
    training.shape.planned_learning_rates.push_back(1e-3 * (1 - point / 200.0));
  EXPECT_THAT(training.Run(*Auto(training)), IsEmpty());
}

TEST(AutoPolicyEarly, DoesNotBehindASuddenDrop) {
  SimulatedTraining training = FineTuning();
  training.steps = 3000;
  training.rate = [](int64_t step) { return step < 1000 ? 1e-3 : 1e-4 * (1 - static_cast<double>(step) / kSteps); };
  EXPECT_THAT(training.Run(*Auto(training)), IsEmpty()) << "though none was planned";
}

TEST(AutoPolicyEarly, DoesNotWhenFrontModulesLearnTheirPart) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedTraining training = FineTuning();
    training.seed = seed;
    training.steps = 3000;
    training.progress = [random = std::make_shared<std::mt19937_64>(seed)](int module, int64_t) {
      std::normal_distribution<double> noise(0, 0.1);
      return (module == 0 ? 0.4 : 0.2) + noise(*random);
    };
    EXPECT_THAT(training.Run(*Auto(training)), IsEmpty());
  }
}

TEST(AutoPolicyEarly, DoesNotByNoise) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedTraining training = FineTuning();
    training.steps = 3000;
    training.progress = [random = std::make_shared<std::mt19937_64>(seed)](int, int64_t) {
      return std::normal_distribution<double>(0, 1)(*random);
    };
    EXPECT_THAT(training.Run(*Auto(training)), IsEmpty()) << seed;
  }
}

TEST(AutoPolicyEarly, LeavesTheClockTheRestOfWhatMayBeGivenUp) {
  SimulatedTraining training = FineTuning();
  training.shape.embedding_prefix = 1;
  training.shape.total_steps = training.steps = 1'000;  // too short for readings before the start
  training.rate = [](int64_t step) { return 1e-3 * (1 - static_cast<double>(step) / 1000); };
  training.snr = [](int, int64_t) { return 0.003; };
  const std::vector<Decision> decisions = training.Run(*Auto(training));
  ASSERT_THAT(decisions, SizeIs(2));
  EXPECT_NEAR(static_cast<double>(decisions[0].step), 400, 28);
  EXPECT_EQ(decisions[1].frozen_prefix, 3);
  // .4 * .05 * .36 of 1 % are given up; (1 - .95)^2 is under the rest, .28 %, and (1 - .925)^2 is not.
  EXPECT_NEAR(static_cast<double>(decisions[1].step), 965, 28);
  EXPECT_GE(decisions[1].step, 947);
}

TEST(AutoPolicyEarly, CountsWhatWasGivenUpBeforeTheCheckpoint) {
  SimulatedTraining training = FineTuning();
  training.shape.embedding_prefix = 1;
  training.shape.total_steps = training.steps = 1'000;
  training.shape.first_step = 600;
  training.rate = [](int64_t step) { return 1e-3 * (1 - static_cast<double>(step) / 1000); };
  training.snr = [](int module, int64_t) { return module == 0 ? 0.3 : 0.003; };
  training.progress = nullptr;
  const auto policy = Auto(training);
  policy->Adopt(600, 1);
  const std::vector<Decision> decisions = training.Run(*policy, 600);
  ASSERT_THAT(decisions, SizeIs(1));
  EXPECT_EQ(decisions[0].frozen_prefix, 3);
  EXPECT_GE(decisions[0].step, 947) << "as if it had frozen at 40 %, see above";
}

TEST(AutoPolicyEarly, WaitsWhereSomebodyUnfreezes) {
  SimulatedTraining training = FineTuning();
  training.shape.embedding_prefix = 1;
  training.shape.total_steps = training.steps = 1'000;
  training.rate = [](int64_t step) { return 1e-3 * (1 - static_cast<double>(step) / 1000); };
  training.snr = [](int, int64_t) { return 0.003; };
  int64_t unfrozen = 0;
  training.meddle = [&unfrozen](int64_t step, Policy& policy) {
    if (unfrozen > 0 || policy.frozen_prefix() == 0) return;
    policy.Adopt(step, 0);
    unfrozen = step;
  };
  std::vector<Decision> decisions = training.Run(*Auto(training));
  ASSERT_GE(decisions.size(), 2u);
  EXPECT_GE(decisions[1].step, unfrozen + 50) << "two periods";
  EXPECT_EQ(decisions[1].frozen_prefix, 1);
}

TEST(AutoPolicyEarly, OfOneRankMeasuresInLongTrainingsOnly) {
  SimulatedTraining training = FineTuning();
  training.shape.ranks = 1;
  training.steps = 3000;
  EXPECT_THAT(training.Run(*Auto(training)), IsEmpty());
  EXPECT_EQ(training.gradient_readings, 0);
}

TEST(AutoPolicyEarly, AddsUpToWhatTheClockGivesUp) {
  SimulatedTraining training = FineTuning();
  training.progress = [](int module, int64_t) { return module < 2 ? 0.02 : 0.48; };
  training.steps = 3200;
  const std::vector<Decision> decisions = training.Run(*Auto(training));
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions[0].frozen_prefix, 2) << "the deepest that may";
  EXPECT_THAT(decisions, SizeIs(1));
}

}  // namespace
}  // namespace egeria::policy
