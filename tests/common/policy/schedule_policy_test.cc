#include <memory>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

std::unique_ptr<Policy> MakeSchedule(std::vector<ScheduleConfig::Entry> entries, int64_t total = 1000) {
  return MakePolicy(ScheduleConfig{std::move(entries)}, JobShape{4, total}).value();
}

TEST(SchedulePolicy, SetsEachPrefixAtItsFraction) {
  const auto policy = MakeSchedule({{0.5, 1}, {0.75, 3}, {0.9, 0}});
  EXPECT_FALSE(DecisionAt(*policy, 499));
  const std::optional<Decision> first = DecisionAt(*policy, 500);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->action, Action::kFreeze);
  EXPECT_EQ(first->frozen_prefix, 1);
  EXPECT_EQ(first->step, 500);
  EXPECT_EQ(first->reason, "the schedule freezes 1 of 4 modules from 50 % of 1000 steps on");
  EXPECT_FALSE(DecisionAt(*policy, 501));
  EXPECT_EQ(DecisionAt(*policy, 760)->frozen_prefix, 3);
  const std::optional<Decision> last = DecisionAt(*policy, 900);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->action, Action::kUnfreeze);
  EXPECT_EQ(last->frozen_prefix, 0);
  EXPECT_FALSE(policy->monitoring());
  EXPECT_EQ(policy->status().modules.size(), 4u);
}

TEST(SchedulePolicy, TakesTheLastOfSeveralEntriesThatHaveComeDue) {
  const auto policy = MakeSchedule({{0, 1}, {0.2, 2}, {0.4, 3}});
  EXPECT_EQ(DecisionAt(*policy, 450)->frozen_prefix, 3);
  EXPECT_FALSE(DecisionAt(*policy, 2000));
}

TEST(SchedulePolicy, DecidesNothingWhereThePrefixIsThereAlready) {
  const auto policy = MakeSchedule({{0.1, 2}, {0.2, 2}});
  EXPECT_TRUE(DecisionAt(*policy, 100));
  EXPECT_FALSE(DecisionAt(*policy, 200));
}

TEST(SchedulePolicy, IsNotLateByRounding) {
  const auto policy = MakeSchedule({{0.07, 1}}, 100);  // 0.07 * 100 > 7 in floating point
  EXPECT_FALSE(DecisionAt(*policy, 6));
  EXPECT_TRUE(DecisionAt(*policy, 7));
}

TEST(SchedulePolicy, GoesOnFromAnAdoptedPrefix) {
  const auto policy = MakeSchedule({{0.5, 1}, {0.75, 3}});
  DecisionAt(*policy, 500);
  policy->Adopt(600, 2);
  EXPECT_EQ(policy->frozen_prefix(), 2);
  EXPECT_FALSE(DecisionAt(*policy, 700));
  EXPECT_EQ(DecisionAt(*policy, 750)->frozen_prefix, 3);
}

TEST(SchedulePolicy, DoesNotOverruleAnOperatorInTheSameStep) {
  const auto policy = MakeSchedule({{0.5, 1}});
  ASSERT_TRUE(DecisionAt(*policy, 500));
  policy->Adopt(500, 0);
  EXPECT_FALSE(DecisionAt(*policy, 500));
  EXPECT_FALSE(DecisionAt(*policy, 501));
}

TEST(SchedulePolicy, ComesOnceMoreAfterAResumeFromAnOlderCheckpoint) {
  const auto policy = MakeSchedule({{0.5, 1}, {0.75, 3}});
  DecisionAt(*policy, 800);
  policy->Adopt(600, 1);
  EXPECT_FALSE(DecisionAt(*policy, 700));
  EXPECT_EQ(DecisionAt(*policy, 750)->frozen_prefix, 3);
}

TEST(SchedulePolicy, OfANewControllerSkipsWhatACheckpointHasBehindIt) {
  const auto policy = MakeSchedule({{0.2, 1}, {0.5, 2}});
  policy->Adopt(300, 0);  // an operator had unfrozen all
  EXPECT_FALSE(DecisionAt(*policy, 301));
  EXPECT_EQ(DecisionAt(*policy, 500)->frozen_prefix, 2);
}

TEST(NonePolicy, DecidesNothingAndRemembersWhatItAdopts) {
  const auto policy = MakePolicy(NoneConfig(), JobShape{3, 0}).value();
  Observation observation{.step = 5, .module = 0, .plasticity = 0, .loss = 1, .learning_rate = 0.1};
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(policy->Observe(observation));
  EXPECT_FALSE(policy->monitoring());
  policy->Adopt(6, 2);
  EXPECT_EQ(policy->frozen_prefix(), 2);
  EXPECT_EQ(policy->status().modules.size(), 3u);
}

}  // namespace
}  // namespace egeria::policy
