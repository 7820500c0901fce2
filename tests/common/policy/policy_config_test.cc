#include "common/policy/policy_config.h"

#include <functional>
#include <limits>

#include "common/policy/training_fractions.h"
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

TEST(GradientLead, HasRoomForTheReadingsOfAnEstimateAndForTellingTheWorkers) {
  EXPECT_EQ(GradientLead(/*interval=*/2, /*readings=*/100, /*least=*/16, /*period=*/40), 160) << "four periods";
  EXPECT_EQ(GradientLead(2, 100, 16, 200), 200) << "all readings";
  EXPECT_EQ(GradientLead(2, 100, 16, 7), 40) << "a quarter more than the least";
  EXPECT_EQ(GradientLead(2, 16, 16, 7), 32);
}

TEST(PolicyConfig, FillsInGradientIntervalsFromTheTotalAndTheRanks) {
  JobShape shape{6, 20'000};
  shape.ranks = 2;
  EXPECT_EQ(std::get<AutoConfig>(Resolve(AutoConfig(), shape).value()).interval_steps, 10);
  EXPECT_EQ(std::get<StagedConfig>(Resolve(StagedConfig(), shape).value()).interval_steps, 10);
  shape.total_steps = 1'000;
  EXPECT_EQ(std::get<AutoConfig>(Resolve(AutoConfig(), shape).value()).interval_steps, 2);
  shape.ranks = 1;
  EXPECT_EQ(std::get<AutoConfig>(Resolve(AutoConfig(), shape).value()).interval_steps, 20)
      << "where a reading costs a backward pass they are few";
  shape.total_steps = 0;
  EXPECT_EQ(std::get<SnrConfig>(Resolve(SnrConfig(), shape).value()).interval_steps, 0) << "known later";
  EXPECT_EQ(std::get<SnrConfig>(Resolve(AutoConfig(), shape).value()).interval_steps, 0);
  EXPECT_EQ(std::get<GradnormConfig>(Resolve(GradnormConfig(), shape).value()).check_steps, 500);
}

TEST(PolicyConfig, RefusesConstantsOfTheOtherPoliciesThatAreOutOfRange) {
  const JobShape shape{4, 1000};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectBad(AutoConfig{.start = 1.1}, shape, "start");
  ExpectBad(AutoConfig{{.every = 0}}, shape, "every");
  ExpectBad(AutoConfig{.max_modules = -1}, shape, "max_modules");
  ExpectBad(AutoConfig{.lr_area_left = nan}, shape, "lr_area_left");
  ExpectBad(AutoConfig{.early_share = 1.1}, shape, "early_share");
  for (const double threshold : {0.0, 1.0, -0.1, nan}) {
    ExpectBad(AutoConfig{{.threshold = threshold}}, shape, "threshold");
    ExpectBad(AutoConfig{{.late_threshold = threshold}}, shape, "late_threshold");
    ExpectBad(StagedConfig{.threshold = threshold}, shape, "threshold");
  }
  ExpectBad(AutoConfig{{.interval_steps = -1}}, shape, "interval_steps");
  ExpectBad(AutoConfig{{.interval_steps = 100'001}}, shape, "interval_steps");
  ExpectBad(AutoConfig{{.interval_steps = -1}}, {4, 0}, "interval_steps");
  ExpectBad(AutoConfig{{.min_readings = 3}}, shape, "min_readings");
  ExpectBad(AutoConfig{{.readings = 10, .min_readings = 11}}, shape, "readings");
  ExpectBad(AutoConfig{{.unfreeze_rise = 0.9}}, shape, "unfreeze_rise");
  ExpectBad(SnrConfig{.start = 1.1}, shape, "start");
  ExpectBad(SnrConfig{.max_modules = -1}, shape, "max_modules");
  ExpectBad(SnrConfig{{.readings = 10, .min_readings = 11}}, shape, "readings");
  ExpectBad(StagedConfig{.begin = 0.9, .end = 0.8}, shape, "end");
  ExpectBad(StagedConfig{.stages = 0}, shape, "stages");
  ExpectBad(StagedConfig{.deepest_prefix = 4}, shape, "the last module never freezes");
  ExpectBad(StagedConfig{.deepest_prefix = 2, .share = 0.5}, shape, "not both");
  ExpectBad(StagedConfig{.every = nan}, shape, "every");
  ExpectBad(FinetuneConfig{.budget = 0}, shape, "budget");
  ExpectBad(FinetuneConfig{.frozen_prefix = 4}, shape, "the last module never freezes");
  ExpectBad(GradnormConfig{.percentile = 101}, shape, "percentile");
  ExpectBad(GradnormConfig{.check_steps = -5}, shape, "check_steps");
}

TEST(PolicyConfig, KnowsEveryPolicyByItsName) {
  EXPECT_STREQ(PolicyName(PlasticityConfig()), "plasticity");
  EXPECT_STREQ(PolicyName(ScheduleConfig()), "schedule");
  EXPECT_STREQ(PolicyName(NoneConfig()), "none");
  EXPECT_STREQ(PolicyName(AutoConfig()), "auto");
  EXPECT_STREQ(PolicyName(SnrConfig()), "snr");
  EXPECT_STREQ(PolicyName(StagedConfig()), "staged");
  EXPECT_STREQ(PolicyName(FinetuneConfig()), "finetune");
  EXPECT_STREQ(PolicyName(GradnormConfig()), "gradnorm");
  EXPECT_STREQ(PolicyName(ActnormConfig()), "actnorm");
}

TEST(PolicyConfig, MakesEveryPolicy) {
  const JobShape shape{4, 1000};
  EXPECT_TRUE(MakePolicy(PlasticityConfig(), shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(PlasticityConfig{.bootstrap = false}, shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(ScheduleConfig{{{0.5, 1}}}, shape).value()->wants_loss());
  EXPECT_FALSE(MakePolicy(NoneConfig(), shape).value()->wants_loss());
}

TEST(PolicyConfig, TheRuleOnAnotherMetricIsTheSameRule) {
  using plasticity::ActivationMetric;
  const JobShape shape{4, 1000};
  PlasticityConfig constants{.interval_steps = 1, .window = 3, .bootstrap = false};
  const auto paper = MakePolicy(constants, shape).value(),
             actnorm = MakePolicy(ActnormConfig{constants}, shape).value();
  EXPECT_EQ(paper->monitoring()->metric, ActivationMetric::kSpLoss);
  EXPECT_EQ(actnorm->monitoring()->metric, ActivationMetric::kActivationNorm);
  EXPECT_NE(RuleOf(constants), nullptr);
  EXPECT_EQ(RuleOf(ActnormConfig{constants})->window, 3);
  EXPECT_EQ(RuleOf(AutoConfig()), nullptr);
  int freezes = 0;
  for (int64_t step = 1; step < 100; ++step) {
    Observation reading;
    reading.step = step;
    reading.module = paper->frozen_prefix();
    reading.plasticity = 1.0 / static_cast<double>(step);
    const auto one = paper->Observe(reading), other = actnorm->Observe(reading);
    ASSERT_EQ(one.has_value(), other.has_value());
    freezes += one.has_value();
  }
  EXPECT_GT(freezes, 0);
  EXPECT_EQ(Resolve(ActnormConfig{{.window = 2}}, shape).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace egeria::policy
