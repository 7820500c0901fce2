#include "controller/policy/policy_config.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlasticityConfig Resolved(const PlasticityConfig& config, const JobShape& shape) {
  return std::get<PlasticityConfig>(Resolve(config, shape).value());
}

void ExpectBad(const PolicyConfig& config, const JobShape& shape, const char* what) {
  for (const absl::Status& status : {Resolve(config, shape).status(), MakePolicy(config, shape).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("[BAD_POLICY]"), HasSubstr(what)));
  }
}

TEST(PolicyConfig, NamesEachPolicy) {
  EXPECT_STREQ(PolicyName(PlasticityConfig()), "plasticity");
  EXPECT_STREQ(PolicyName(ScheduleConfig()), "schedule");
  EXPECT_STREQ(PolicyName(NoneConfig()), "none");
  EXPECT_STREQ(ActionName(Action::kFreeze), "freeze");
  EXPECT_STREQ(ActionName(Action::kUnfreeze), "unfreeze");
}

TEST(PolicyConfig, TakesTheIntervalFromTheGuidelineWhereTheTotalIsKnown) {
  EXPECT_EQ(Resolved({}, {4, 0}).interval_steps, 50);
  EXPECT_EQ(Resolved({}, {4, 14'000}).interval_steps, 100);  // 14000 / 20 / 4 / 1.75
  EXPECT_EQ(Resolved({.window = 5}, {4, 14'000}).interval_steps, 200);
  EXPECT_EQ(Resolved({}, {4, 10}).interval_steps, 1);
  EXPECT_EQ(Resolved({}, {2, std::numeric_limits<int64_t>::max()}).interval_steps, 100'000);
  EXPECT_EQ(Resolved({.interval_steps = 7}, {4, 14'000}).interval_steps, 7);
}

TEST(PolicyConfig, ResolvesToItselfOnceResolved) {
  PlasticityConfig config;
  config.unfreeze_steps = {300, 100, 200};
  const PlasticityConfig once = Resolved(config, {4, 14'000});
  const PlasticityConfig twice = Resolved(once, {4, 14'000});
  EXPECT_EQ(once.unfreeze_steps, (std::vector<int64_t>{100, 200, 300}));
  EXPECT_EQ(twice.unfreeze_steps, once.unfreeze_steps);
  EXPECT_EQ(twice.interval_steps, once.interval_steps);
}

TEST(PolicyConfig, RefusesConstantsOutOfRange) {
  const JobShape shape{4, 1000};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectBad(PlasticityConfig{.interval_steps = -1}, shape, "interval_steps");
  ExpectBad(PlasticityConfig{.interval_steps = 100'001}, shape, "interval_steps");
  ExpectBad(PlasticityConfig{.window = 2}, shape, "window");
  ExpectBad(PlasticityConfig{.window = 1001}, shape, "window");
  for (const double tolerance : {0.0, -0.2, 1.01, nan}) {
    ExpectBad(PlasticityConfig{.tolerance = tolerance}, shape, "tolerance");
  }
  ExpectBad(PlasticityConfig{.batch_size = 1}, shape, "batch_size");
  for (const double factor : {1.0, 0.5, -10.0, 2e6, nan}) {
    ExpectBad(PlasticityConfig{.learning_rate_drop = factor}, shape, "learning_rate_drop");
    ExpectBad(PlasticityConfig{.learning_rate_rise = factor}, shape, "learning_rate_rise");
  }
  ExpectBad(PlasticityConfig{.unfreeze_steps = {5, -1}}, shape, "unfreeze_steps");
  ExpectBad(PlasticityConfig{.unfreeze_steps = std::vector<int64_t>(1025, 1)}, shape, "unfreeze_steps");
}

TEST(PolicyConfig, RefusesAJobOfOneModuleAndANegativeTotal) {
  for (const PolicyConfig& config : {PolicyConfig(PlasticityConfig()), PolicyConfig(NoneConfig())}) {
    ExpectBad(config, {1, 0}, "modules is 1");
    ExpectBad(config, {0, 0}, "modules");
    ExpectBad(config, {4, -1}, "total_steps");
  }
}

TEST(PolicyConfig, RefusesASchedulesMistakes) {
  const JobShape shape{4, 1000};
  ExpectBad(ScheduleConfig{{{0.5, 1}}}, {4, 0}, "total_steps");
  ExpectBad(ScheduleConfig{}, shape, "0 entries");
  ExpectBad(ScheduleConfig{{{0.5, 4}}}, shape, "the last module never freezes");
  ExpectBad(ScheduleConfig{{{0.5, -1}}}, shape, "frozen_prefix");
  ExpectBad(ScheduleConfig{{{1.5, 1}}}, shape, "fraction");
  ExpectBad(ScheduleConfig{{{std::numeric_limits<double>::quiet_NaN(), 1}}}, shape, "fraction");
  ExpectBad(ScheduleConfig{{{0.5, 1}, {0.5, 2}}}, shape, "must rise");
}

TEST(PolicyConfig, MakesEveryPolicy) {
  const JobShape shape{4, 1000};
  EXPECT_TRUE(MakePolicy(PlasticityConfig(), shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(PlasticityConfig{.bootstrap = false}, shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(ScheduleConfig{{{0.5, 1}}}, shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(NoneConfig(), shape).value()->wants_loss());
}

}  // namespace
}  // namespace egeria::policy
