#include <memory>
#include <optional>
#include <utility>

#include "common/policy/policy_config.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

Observation At(int64_t step, std::optional<int> frozen_by_script = std::nullopt) {
  Observation observation;
  observation.step = step;
  observation.frozen_by_script = frozen_by_script;
  return observation;
}

Observation Reading(int64_t step, int module, double plasticity) {
  Observation observation = At(step);
  observation.module = module;
  observation.plasticity = plasticity;
  return observation;
}

std::unique_ptr<Policy> MakePlasticity() {
  const PlasticityConfig config{.interval_steps = 1, .window = 4, .bootstrap = false};
  return MakePolicy(config, JobShape{6}).value();
}

TEST(BehindScriptPolicy, BeginsBehindWhatTheScriptHasFrozen) {
  const auto policy = MakePlasticity();
  ASSERT_TRUE(policy->monitoring());
  EXPECT_EQ(policy->monitoring()->module, 0);
  EXPECT_FALSE(policy->Observe(At(1, 3))) << "nothing is to be done about it";
  EXPECT_EQ(policy->frozen_prefix(), 0) << "none of it is the policy's";
  ASSERT_TRUE(policy->monitoring());
  EXPECT_EQ(policy->monitoring()->module, 3);
  std::optional<Decision> decision;
  for (int64_t step = 2; step < 200 && !decision; ++step) decision = policy->Observe(Reading(step, 3, 0.5));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kFreeze);
  EXPECT_EQ(decision->frozen_prefix, 4);
  EXPECT_EQ(policy->frozen_prefix(), 4);
}

TEST(BehindScriptPolicy, GoesOnInFrontWhereTheScriptThaws) {
  const auto policy = MakePlasticity();
  policy->Observe(At(1, 3));
  EXPECT_FALSE(policy->Observe(At(2, 1)));
  EXPECT_EQ(policy->monitoring()->module, 1);
  EXPECT_FALSE(policy->Observe(At(3, 0)));
  EXPECT_EQ(policy->monitoring()->module, 0);
}

TEST(BehindScriptPolicy, AnOrderForLessThanTheScriptHasFrozenIsDone) {
  const ScheduleConfig config{.entries = {{0.1, 2}, {0.5, 4}}};
  const auto policy = MakePolicy(config, JobShape{6, 100}).value();
  EXPECT_FALSE(policy->Observe(At(1, 3)));
  EXPECT_FALSE(policy->Observe(At(20)));
  EXPECT_EQ(policy->frozen_prefix(), 0);
  const std::optional<Decision> decision = policy->Observe(At(60));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->frozen_prefix, 4);
}

TEST(BehindScriptPolicy, ThawsItsOwnAndNotTheScripts) {
  const ScheduleConfig config{.entries = {{0.1, 4}, {0.5, 1}}};
  const auto policy = MakePolicy(config, JobShape{6, 100}).value();
  EXPECT_FALSE(policy->Observe(At(1, 2)));
  ASSERT_TRUE(policy->Observe(At(20)));
  const std::optional<Decision> decision = policy->Observe(At(60));
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->action, Action::kUnfreeze);
  EXPECT_EQ(decision->frozen_prefix, 0);
  EXPECT_EQ(policy->frozen_prefix(), 0);
}

TEST(BehindScriptPolicy, AnOperatorsPrefixStands) {
  const auto policy = MakePlasticity();
  policy->Observe(At(1, 3));
  policy->Adopt(2, 5);
  EXPECT_EQ(policy->frozen_prefix(), 5);
  policy->Adopt(3, 0);
  EXPECT_EQ(policy->frozen_prefix(), 0);
  EXPECT_EQ(policy->monitoring()->module, 3);
}

}  // namespace
}  // namespace egeria::policy
