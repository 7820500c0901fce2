#include "controller/job/observation_filter.h"

#include <limits>

#include "common/policy/policy_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/facts.h"

namespace egeria::controller {
namespace {

using ::testing::StartsWith;

class ObservationFilterTest : public ::testing::Test {
 protected:
  // A job under `policy`; none: the plasticity policy with bootstrapping.
  void Register(const v1::PolicyConfig& policy = {}, bool losses_reported = true) {
    storage::v1::Fact fact = RegisteredFact(1);
    v1::RegisterJobRequest* request = fact.mutable_registered()->mutable_request();
    *request->mutable_policy() = policy;
    request->set_losses_unreported(!losses_reported);
    if (policy.policy_case() == v1::PolicyConfig::POLICY_NOT_SET) {
      request->mutable_policy()->mutable_plasticity()->set_interval_steps(10);
    }
    const auto resolved = policy::Resolve(policy::FromProto(request->policy()), {3, request->total_steps()});
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    *request->mutable_policy() = policy::ToProto(*resolved);
    ASSERT_TRUE(state_.Apply(fact).ok());
  }

  // Returns what is recorded of a heartbeat; the state has it afterwards.
  std::vector<v1::Observation> Beat(int64_t step, std::vector<float> losses, std::optional<double> rate = {}) {
    v1::Heartbeat heartbeat;
    heartbeat.set_step(step);
    heartbeat.mutable_losses()->set_first_step(step - static_cast<int64_t>(losses.size()) + 1);
    for (float loss : losses) heartbeat.mutable_losses()->add_values(loss);
    if (rate) heartbeat.add_learning_rates(*rate);
    EXPECT_TRUE(ValidateHeartbeat(heartbeat, 3).ok());
    const auto taken = filter_.Take(heartbeat, state_);
    for (const v1::Observation& observation : taken) {
      storage::v1::Fact fact;
      *fact.mutable_observed() = observation;
      EXPECT_TRUE(state_.Apply(fact).ok());
    }
    return taken;
  }

  JobState state_;
  ObservationFilter filter_;
};

TEST_F(ObservationFilterTest, TakesEachStepsLossOnce) {
  Register();
  EXPECT_EQ(Beat(3, {3, 2, 1}).size(), 3u);
  EXPECT_EQ(filter_.LossWatermark(state_), 3);
  const auto taken = Beat(5, {3, 2, 1, 0.5f, 0.4f});  // a reconnected worker repeats itself
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].step(), 4);
  EXPECT_EQ(taken[1].loss(), 0.4f);
}

TEST_F(ObservationFilterTest, KnowsAfterARestartWhichLossesTheJournalHas) {
  Register();
  Beat(3, {3, 2, 1});
  filter_ = ObservationFilter();
  EXPECT_EQ(filter_.LossWatermark(state_), 3);
  EXPECT_EQ(Beat(4, {3, 2, 1, 0.5f}).size(), 1u);
}

TEST_F(ObservationFilterTest, PassesOverLossesThatAreNotFinite) {
  Register();
  EXPECT_EQ(Beat(3, {1, std::numeric_limits<float>::quiet_NaN(), 2}).size(), 2u);
  EXPECT_EQ(filter_.LossWatermark(state_), 3);
}

TEST_F(ObservationFilterTest, TakesNoLossesThatNobodyWants) {
  v1::PolicyConfig none;
  none.mutable_none();
  Register(none);
  EXPECT_TRUE(Beat(3, {3, 2, 1}).empty());
  EXPECT_EQ(filter_.LossWatermark(state_), 3) << "the worker can forget them";
}

TEST_F(ObservationFilterTest, RecordsALearningRateThatMovesByOnePercent) {
  Register();
  EXPECT_EQ(Beat(1, {}, 0.1).size(), 1u);
  EXPECT_TRUE(Beat(2, {}, 0.1).empty());
  EXPECT_TRUE(Beat(3, {}, 0.0995).empty());
  EXPECT_EQ(Beat(4, {}, 0.0989).size(), 1u) << "slow changes add up";
  EXPECT_EQ(Beat(5, {}, 0.01).size(), 1u);
  EXPECT_EQ(Beat(6, {}, 0.1).size(), 1u);
}

TEST_F(ObservationFilterTest, MissesNoSmallDropThatStays) {
  Register();
  Beat(1, {}, 0.1);
  EXPECT_TRUE(Beat(2, {}, 0.0999).empty());
  const auto taken = Beat(3, {}, 0.0999);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].learning_rate(), 0.0999);
  EXPECT_TRUE(Beat(4, {}, 0.0999).empty());
}

TEST_F(ObservationFilterTest, BooksTheRateWithTheLossOfItsStep) {
  Register();
  const auto taken = Beat(2, {2, 1}, 0.1);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_FALSE(taken[0].has_learning_rate());
  EXPECT_TRUE(taken[1].has_learning_rate());
}

TEST_F(ObservationFilterTest, TakesTheRateOfTheFirstGroupThatLearns) {
  Register();
  v1::Heartbeat heartbeat;
  heartbeat.set_step(1);
  for (const double rate : {0.0, 0.3, 0.2}) heartbeat.add_learning_rates(rate);
  heartbeat.set_zero_lr_prefix(1);
  const auto taken = filter_.Take(heartbeat, state_);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].learning_rate(), 0.3);
  EXPECT_EQ(taken[0].zero_lr_prefix(), 1);
  storage::v1::Fact fact;
  *fact.mutable_observed() = taken[0];
  ASSERT_TRUE(state_.Apply(fact).ok());
  heartbeat.set_step(2);
  heartbeat.set_learning_rates(0, 0.001);
  EXPECT_TRUE(filter_.Take(heartbeat, state_).empty()) << "the rate stays that of the group that it was of";
}

TEST_F(ObservationFilterTest, RecordsHowManyModulesDoNotChangeWhenTheNumberDoes) {
  Register();
  v1::Heartbeat heartbeat;
  std::vector<std::optional<int>> recorded;
  for (const int still : {0, 2, 2, 1, 1, 0}) {
    heartbeat.set_step(heartbeat.step() + 1);
    heartbeat.set_zero_lr_prefix(still);
    std::optional<int> told;
    for (const v1::Observation& observation : filter_.Take(heartbeat, state_)) {
      if (observation.has_zero_lr_prefix()) told = observation.zero_lr_prefix();
      storage::v1::Fact fact;
      *fact.mutable_observed() = observation;
      ASSERT_TRUE(state_.Apply(fact).ok());
    }
    recorded.push_back(told);
  }
  EXPECT_EQ(recorded, (std::vector<std::optional<int>>{{}, 2, {}, 1, {}, 0}));
  heartbeat.set_zero_lr_prefix(1);
  EXPECT_EQ(filter_.Take(heartbeat, state_).size(), 1u);
  heartbeat.clear_zero_lr_prefix();  // a process that has done no step yet sends none
  EXPECT_TRUE(filter_.Take(heartbeat, state_).empty());
  heartbeat.set_zero_lr_prefix(3);
  EXPECT_FALSE(ValidateHeartbeat(heartbeat, 3).ok()) << "the last module always learns";
}

TEST_F(ObservationFilterTest, NeverBooksBeforeTheNewestStep) {
  Register();
  ASSERT_TRUE(state_.Apply(ReadingFact(50, 0, 0.1)).ok());
  for (const v1::Observation& observation : Beat(40, {1, 2}, 0.1)) EXPECT_GE(observation.step(), 50);
}

TEST_F(ObservationFilterTest, TellsASchedulePolicyThatTrainingGoesOn) {
  v1::PolicyConfig schedule;
  auto* entry = schedule.mutable_schedule()->add_entries();
  entry->set_fraction(0.5);
  entry->set_frozen_prefix(1);
  Register(schedule);  // 10,000 steps: every 10 steps is enough
  EXPECT_TRUE(Beat(5, {1, 1}).empty());
  EXPECT_EQ(Beat(10, {1, 1}).size(), 1u);
  EXPECT_TRUE(Beat(15, {}).empty());
  Beat(5'000, {});
  ASSERT_EQ(state_.pending_decisions().size(), 1u);
  EXPECT_EQ(state_.pending_decisions().front().frozen_prefix, 1);
}

TEST_F(ObservationFilterTest, NothingFreezesWhileTheNewestLossIsNotFinite) {
  v1::PolicyConfig schedule;
  auto* entry = schedule.mutable_schedule()->add_entries();
  entry->set_fraction(0.5);
  entry->set_frozen_prefix(1);
  Register(schedule);  // it wants no losses
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(Beat(5, {1, kNan, 1}).empty()) << "the newest one counts";
  const auto taken = Beat(4'999, {1, kNan}, 0.1);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_TRUE(taken[0].has_loss_is_finite() && !taken[0].loss_is_finite());
  EXPECT_FALSE(taken[0].has_learning_rate()) << "the policy would not see it";
  EXPECT_THAT(state_.blocked(), StartsWith("[LOSS_NOT_FINITE]"));
  Beat(5'000, {kInfinity}, 0.1);
  Beat(5'100, {}, 0.1);
  EXPECT_TRUE(state_.pending_decisions().empty());
  filter_ = ObservationFilter();  // the controller has been started anew
  Beat(5'200, {kNan}, 0.1);
  EXPECT_TRUE(state_.pending_decisions().empty());
  const auto again = Beat(5'300, {1}, 0.1);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(again[0].loss_is_finite() && again[0].has_learning_rate());
  EXPECT_EQ(state_.blocked(), "");
  ASSERT_EQ(state_.pending_decisions().size(), 1u);
  EXPECT_EQ(state_.pending_decisions().front().frozen_prefix, 1);
}

TEST_F(ObservationFilterTest, ALossThatIsSentAgainAfterAReconnectIsNotTheNewest) {
  v1::PolicyConfig none;
  none.mutable_none();
  Register(none);
  Beat(10, {std::numeric_limits<float>::quiet_NaN()});
  EXPECT_FALSE(state_.loss_is_finite());
  v1::Heartbeat old;
  old.set_step(10);
  old.mutable_losses()->set_first_step(9);
  old.mutable_losses()->add_values(1);
  EXPECT_TRUE(filter_.Take(old, state_).empty());
}

TEST_F(ObservationFilterTest, TellsAPolicyWithoutLossesOnceThatTheAwaitedStepIsThere) {
  Register({}, /*losses_reported=*/false);  // n = 10
  EXPECT_TRUE(Beat(30, {1, 1}).empty()) << "losses that nobody wants";
  EXPECT_TRUE(Beat(59, {}).empty());
  const auto taken = Beat(64, {});
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].step(), 64);
  EXPECT_FALSE(state_.policy().status().bootstrapping);
  EXPECT_TRUE(Beat(70, {}).empty());
}

TEST_F(ObservationFilterTest, DoesNotRepeatTheAwaitedStepToAPausedPolicy) {
  Register({}, /*losses_reported=*/false);
  ASSERT_TRUE(state_.Apply(PauseFact(true)).ok());
  EXPECT_TRUE(Beat(64, {}).empty());
  ASSERT_TRUE(state_.Apply(PauseFact(false)).ok());
  EXPECT_EQ(Beat(65, {}).size(), 1u);
}

TEST(ValidateHeartbeat, NamesWhatIsWrong) {
  auto why = [](const v1::Heartbeat& heartbeat) { return std::string(ValidateHeartbeat(heartbeat, 3).message()); };
  v1::Heartbeat heartbeat;
  heartbeat.set_step(10);
  EXPECT_EQ(why(heartbeat), "");
  heartbeat.set_frozen_prefix(3);
  EXPECT_THAT(why(heartbeat), StartsWith("[BAD_MESSAGE]"));
  heartbeat.set_frozen_prefix(0);
  heartbeat.mutable_losses()->set_first_step(10);
  heartbeat.mutable_losses()->add_values(1);
  EXPECT_EQ(why(heartbeat), "");
  heartbeat.mutable_losses()->add_values(1);
  EXPECT_THAT(why(heartbeat), StartsWith("[BAD_MESSAGE]")) << "a loss of a step that is not done";
  heartbeat.mutable_losses()->set_first_step(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(why(heartbeat), StartsWith("[BAD_MESSAGE]"));
  heartbeat.clear_losses();
  for (int i = 0; i < kMaxLearningRatesPerHeartbeat + 1; ++i) heartbeat.add_learning_rates(1);
  EXPECT_THAT(why(heartbeat), StartsWith("[HEARTBEAT_TOO_LARGE]"));
}

TEST_F(ObservationFilterTest, TakesAFiftiethOfTheAccounts) {
  Register();
  const int64_t total = state_.registration().total_steps();
  ASSERT_GT(total, 0);
  v1::Heartbeat heartbeat;
  heartbeat.mutable_account()->set_measuring_seconds(2);
  int taken = 0;
  for (int64_t step = 0; step <= total; ++step) {
    heartbeat.set_step(step);
    for (const v1::Observation& observation : filter_.Take(heartbeat, state_)) {
      if (!observation.has_account()) continue;
      ++taken;
      EXPECT_EQ(observation.account().measuring_seconds(), 2);
    }
  }
  EXPECT_EQ(taken, 51);
}

TEST_F(ObservationFilterTest, TakesTheFirstAccountOfAnotherFrozenPrefixAtOnce) {
  Register();
  v1::Heartbeat heartbeat;
  std::vector<int64_t> taken;
  for (int64_t step = 0; step < 9; ++step) {
    heartbeat.set_step(step);
    heartbeat.mutable_account()->set_frozen_prefix(step < 4 ? 0 : 1);
    for (const v1::Observation& observation : filter_.Take(heartbeat, state_)) {
      if (observation.has_account()) taken.push_back(observation.step());
    }
  }
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 4}));
}

TEST_F(ObservationFilterTest, TakesNoAccountThatIsOfNoUse) {
  const auto takes = [this] {
    v1::Heartbeat heartbeat;
    heartbeat.set_step(10);
    heartbeat.mutable_account()->set_spent_seconds(2);
    for (const v1::Observation& observation : ObservationFilter().Take(heartbeat, state_)) {
      if (observation.has_account()) return true;
    }
    return false;
  };
  Register();
  EXPECT_TRUE(takes());
  ASSERT_TRUE(state_.Apply(PauseFact(true)).ok());
  EXPECT_FALSE(takes());
  ASSERT_TRUE(state_.Apply(PauseFact(false)).ok());
  ASSERT_TRUE(state_.Apply(ModeFact(v1::MODE_OBSERVE)).ok());
  EXPECT_FALSE(takes()) << "nothing can be saved";
  state_ = JobState();
  v1::PolicyConfig none;
  none.mutable_none();
  Register(none);
  EXPECT_FALSE(takes());
}

TEST_F(ObservationFilterTest, RefusesReportsOfACacheThatAreNone) {
  v1::Heartbeat heartbeat;
  v1::CacheReport* cache = heartbeat.mutable_cache();
  cache->set_state("on");
  cache->set_saved_seconds(-1);
  EXPECT_TRUE(ValidateHeartbeat(heartbeat, 3).ok());
  const auto refused = [&heartbeat] {
    return std::string(ValidateHeartbeat(heartbeat, 3).message()).starts_with("[BAD_MESSAGE]");
  };
  cache->set_saved_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(refused());
  cache->set_saved_seconds(0);
  cache->set_hits(-1);
  EXPECT_TRUE(refused());
  cache->set_hits(0);
  cache->set_reason(std::string(1'001, 'x'));
  EXPECT_TRUE(refused());
}

TEST_F(ObservationFilterTest, RefusesAccountsThatAreNone) {
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    v1::Heartbeat heartbeat;
    heartbeat.mutable_account()->set_spent_seconds(seconds);
    EXPECT_THAT(std::string(ValidateHeartbeat(heartbeat, 3).message()), StartsWith("[BAD_MESSAGE]"));
    heartbeat.mutable_account()->set_spent_seconds(0);
    EXPECT_TRUE(ValidateHeartbeat(heartbeat, 3).ok());
    heartbeat.mutable_account()->set_measuring_seconds(seconds);
    EXPECT_THAT(std::string(ValidateHeartbeat(heartbeat, 3).message()), StartsWith("[BAD_MESSAGE]"));
    heartbeat.mutable_account()->set_measuring_seconds(0);
    heartbeat.mutable_account()->set_switch_seconds(seconds);
    EXPECT_THAT(std::string(ValidateHeartbeat(heartbeat, 3).message()), StartsWith("[BAD_MESSAGE]"));
  }
  for (const int prefix : {-1, 3}) {
    v1::Heartbeat heartbeat;
    heartbeat.mutable_account()->set_frozen_prefix(prefix);
    EXPECT_THAT(std::string(ValidateHeartbeat(heartbeat, 3).message()), StartsWith("[BAD_MESSAGE]"));
  }
  v1::Heartbeat lost;
  lost.mutable_account()->set_saved_seconds(-3);  // freezing that costs time
  EXPECT_TRUE(ValidateHeartbeat(lost, 3).ok());
}

}  // namespace
}  // namespace egeria::controller
