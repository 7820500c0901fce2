#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

// Gives readings of the steps up to `end`, ten apart, with these norms of all modules from the frozen prefix on.
std::vector<Decision> Feed(Policy& policy, int64_t* step, int64_t end, const std::vector<double>& norms) {
  std::vector<Decision> decisions;
  for (; *step < end; *step += 10) {
    GradientReading reading{*step + 10, policy.frozen_prefix(), 1, {}, {}, 64};
    for (size_t i = static_cast<size_t>(policy.frozen_prefix()); i < norms.size(); ++i) {
      reading.square_of_mean.push_back(norms[i] * norms[i]);
      reading.mean_of_squares.push_back(norms[i] * norms[i]);
    }
    if (auto decision = policy.Observe({.step = *step + 10, .gradients = reading})) decisions.push_back(*decision);
  }
  return decisions;
}

TEST(GradnormPolicy, FreezesTheFrontThatChangesLeast) {
  const auto policy = MakePolicy(GradnormConfig{.check_steps = 100}, JobShape{5, 1000}).value();
  EXPECT_EQ(policy->gradient_monitoring()->interval_steps, 10);
  int64_t step = 0;
  EXPECT_TRUE(Feed(*policy, &step, 100, {1, 1, 1, 1, 1}).empty()) << "nothing to compare with";
  // The changes are .01, .02, .3, .0, .5: the median is .02, which module 1 is not under.
  const std::vector<Decision> first = Feed(*policy, &step, 200, {1.01, 0.98, 1.3, 1, 1.5});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].step, 200);
  EXPECT_EQ(first[0].frozen_prefix, 1);
  EXPECT_THAT(first[0].reason, HasSubstr("modules 0 to 0: gradient norms have changed by less than 0.02"));
  // The other four change by .0, .0, .5, .5; the median lies between.
  const std::vector<Decision> second = Feed(*policy, &step, 300, {9, 0.98, 1.3, 1.5, 2.25});
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].frozen_prefix, 3);
}

TEST(GradnormPolicy, NeverFreezesTheLastModuleNorUnfreezes) {
  const auto policy = MakePolicy(GradnormConfig{.percentile = 100, .check_steps = 10}, JobShape{3, 1000}).value();
  int64_t step = 0;
  double norm = 1;
  for (int i = 0; i < 40; ++i) {
    norm *= 1.5;
    for (const Decision& decision : Feed(*policy, &step, step + 10, {1, 1, norm})) {
      EXPECT_EQ(decision.action, Action::kFreeze);
    }
  }
  EXPECT_EQ(policy->frozen_prefix(), 2);
  EXPECT_FALSE(policy->gradient_monitoring());
}

TEST(GradnormPolicy, ComparesNothingOverAnIntervalWithoutReadings) {
  const auto policy = MakePolicy(GradnormConfig{.check_steps = 100}, JobShape{3, 1000}).value();
  int64_t step = 0;
  Feed(*policy, &step, 100, {1, 1, 1});
  EXPECT_FALSE(policy->Observe({.step = 350}));
  step = 350;
  EXPECT_FALSE(Feed(*policy, &step, 460, {1, 2, 3}).empty()) << "compared with the interval before";
}

TEST(GradnormPolicy, TakesItsIntervalsFromTheTotal) {
  const auto resolved = Resolve(GradnormConfig(), JobShape{3, 10'000}).value();
  EXPECT_EQ(std::get<GradnormConfig>(resolved).check_steps, 500);
  EXPECT_EQ(std::get<GradnormConfig>(resolved).interval_steps, 50);
}

}  // namespace
}  // namespace egeria::policy
