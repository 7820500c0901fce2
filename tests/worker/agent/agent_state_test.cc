#include "worker/agent/agent_state.h"

#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/agent/agent_test_job.h"

namespace egeria::worker {
namespace {

using ::testing::ElementsAre;

v1::Directive DirectiveOf(int64_t generation = 3) {
  v1::Directive directive;
  directive.set_generation(generation);
  return directive;
}
v1::Directive Wanting(int first_module, int module, int64_t version) {
  v1::Directive directive = DirectiveOf();
  directive.mutable_snapshot()->set_first_module(first_module);
  directive.mutable_snapshot()->set_module(module);
  directive.mutable_snapshot()->set_version(version);
  return directive;
}
void AddPlan(v1::Directive* directive, int64_t id, int prefix, int64_t generation = 3) {
  v1::Plan* plan = directive->add_plans();
  plan->set_plan_id(id);
  plan->set_generation(generation);
  plan->set_frozen_prefix(prefix);
}

class AgentStateTest : public ::testing::Test {
 protected:
  static StepReport At(int64_t step, float loss = 1) { return {step, loss, {0.1, 0.2}, 0, PlanId(0)}; }

  void SendAllUploads() {
    while (std::optional<Upload> upload = state_.TakeUpload()) state_.UploadSent(*upload);
  }

  AgentState state_{TestJob(), 1 << 20, 8, std::make_shared<Wakeup>()};
};

TEST_F(AgentStateTest, PutsTheNewestReportAndAllLossesIntoTheHeartbeat) {
  for (int64_t step = 1; step <= 3; ++step) state_.ReportStep(At(step, static_cast<float>(step)));
  const v1::Heartbeat heartbeat = state_.TakeHeartbeat();
  EXPECT_EQ(heartbeat.step(), 3);
  EXPECT_THAT(heartbeat.learning_rates(), ElementsAre(0.1, 0.2));
  EXPECT_EQ(heartbeat.losses().first_step(), 1);
  EXPECT_THAT(heartbeat.losses().values(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(state_.TakeHeartbeat().has_losses());
}

TEST_F(AgentStateTest, CountsWhatTheReferenceTakesFromItsFirstDirectiveOn) {
  v1::Directive directive = DirectiveOf();
  const auto after = [&](double seconds) {
    directive.set_reference_seconds(seconds);
    state_.Apply(directive);
    return state_.counters().reference_seconds;
  };
  EXPECT_EQ(after(5), 0) << "spent on the process before this one";
  EXPECT_EQ(after(6), 1);
  EXPECT_EQ(after(6), 1);
  EXPECT_EQ(after(0.5), 1.5) << "of a controller that has been restarted";
  EXPECT_EQ(after(2), 3);
  EXPECT_EQ(after(std::numeric_limits<double>::quiet_NaN()), 3);
  EXPECT_EQ(after(-1), 3);
  EXPECT_EQ(after(2.5), 3.5);
}

TEST_F(AgentStateTest, KnowsWhyNothingFreezesNow) {
  v1::Directive directive = DirectiveOf();
  for (const char* reason : {"[NOT_WORTH_IT] too late", ""}) {
    directive.set_blocked(reason);
    directive.set_advice(reason);
    state_.Apply(directive);
    EXPECT_EQ(state_.counters().blocked, reason);
    EXPECT_EQ(state_.counters().advice, reason);
  }
}

TEST_F(AgentStateTest, TellsWhatASwitchTakes) {
  TimeTotals time{1, {}, {{0, 0.1}}, 2.5};
  StepReport report;
  report.time = std::make_shared<const TimeTotals>(time);
  state_.ReportStep(report);
  EXPECT_EQ(state_.TakeHeartbeat().account().switch_seconds(), 2.5);
}

TEST_F(AgentStateTest, SendsLossesOnlyFromRankZero) {
  AgentState other(TestJob(/*rank=*/1), 1 << 20, 8, std::make_shared<Wakeup>());
  other.ReportStep(At(1));
  EXPECT_FALSE(other.TakeHeartbeat().has_losses());
  EXPECT_EQ(other.TakeHeartbeat().step(), 1);
}

TEST_F(AgentStateTest, SendsLossesAgainOnANewStreamButForTheRecordedOnes) {
  for (int64_t step = 1; step <= 4; ++step) state_.ReportStep(At(step, static_cast<float>(step)));
  state_.TakeHeartbeat();
  v1::Directive directive = DirectiveOf();
  directive.set_loss_watermark(2);
  state_.Apply(directive);
  state_.EndStream(std::nullopt);
  state_.BeginStream();
  EXPECT_THAT(state_.TakeHeartbeat().losses().values(), ElementsAre(3, 4));
}

TEST_F(AgentStateTest, HurriesTheHeartbeatWhenSomethingImportantChanges) {
  state_.TakeHeartbeat();
  EXPECT_FALSE(state_.HeartbeatIsUrgent());
  state_.ReportStep(At(1));
  EXPECT_FALSE(state_.HeartbeatIsUrgent());
  v1::Directive directive = DirectiveOf();
  AddPlan(&directive, 1, 1);
  state_.Apply(directive);
  EXPECT_TRUE(state_.HeartbeatIsUrgent());
  EXPECT_EQ(state_.TakeHeartbeat().plan_watermark(), 1);
  EXPECT_FALSE(state_.HeartbeatIsUrgent());
  StepReport applied = At(2);
  applied.applied_plan = PlanId(1);
  applied.frozen_prefix = 1;
  state_.ReportStep(applied);
  EXPECT_TRUE(state_.HeartbeatIsUrgent());
  const v1::Heartbeat heartbeat = state_.TakeHeartbeat();
  EXPECT_EQ(heartbeat.applied_plan(), 1);
  EXPECT_EQ(heartbeat.frozen_prefix(), 1);
  EXPECT_EQ(heartbeat.counters().commits(), 1);
}

TEST_F(AgentStateTest, HurriesTheHeartbeatAtEachHundredthOfTheSteps) {
  for (const auto& [rank, total] : std::vector<std::pair<int, int64_t>>{{0, 1000}, {1, 1000}, {0, 0}}) {
    JobDescription job = TestJob();
    job.rank = rank;
    job.total_steps = total;
    AgentState state(job, 1 << 20, 8, std::make_shared<Wakeup>());
    state.Apply(DirectiveOf());  // it is connected
    state.TakeHeartbeat();
    state.ReportStep(At(9));
    EXPECT_FALSE(state.HeartbeatIsUrgent());
    state.ReportStep(At(10));
    EXPECT_FALSE(state.HeartbeatIsUrgent()) << "the one before was just now";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    state.ReportStep(At(10));
    EXPECT_EQ(state.HeartbeatIsUrgent(), rank == 0 && total == 1000);
  }
}

TEST_F(AgentStateTest, HurriesTheNextHeartbeatWhileRunsOfLossesAreLeft) {
  state_.ReportStep(At(1));
  state_.ReportStep(At(10));
  state_.TakeHeartbeat();
  EXPECT_TRUE(state_.HeartbeatIsUrgent());
  EXPECT_EQ(state_.TakeHeartbeat().losses().first_step(), 10);
  EXPECT_FALSE(state_.HeartbeatIsUrgent());
}

TEST_F(AgentStateTest, TakesTheDirectivesWishesAsTheyAreNow) {
  v1::Directive directive = DirectiveOf();
  directive.mutable_sampling()->set_module(2);
  directive.mutable_sampling()->set_first_module(1);
  directive.mutable_sampling()->set_interval_steps(5);
  directive.mutable_sampling()->set_batch_size(16);
  directive.mutable_sampling()->set_version(9);
  state_.Apply(directive);
  const std::optional<SamplingRequest> sampling = state_.sampling();
  ASSERT_TRUE(sampling.has_value());
  EXPECT_EQ(sampling->module, ModuleIndex(2));
  EXPECT_EQ(sampling->first_module, ModuleIndex(1));
  EXPECT_EQ(sampling->interval_steps, 5);
  EXPECT_EQ(sampling->batch_size, 16);
  EXPECT_EQ(sampling->version, 9);
  directive.mutable_gradients()->set_first_module(3);
  directive.mutable_gradients()->set_interval_steps(7);
  directive.mutable_gradients()->set_version(2);
  state_.Apply(directive);
  const std::optional<GradientRequest> gradients = state_.gradients();
  ASSERT_TRUE(gradients.has_value());
  EXPECT_EQ(gradients->first_module, ModuleIndex(3));
  EXPECT_EQ(gradients->interval_steps, 7);
  EXPECT_EQ(gradients->version, 2);
  state_.Apply(DirectiveOf());
  EXPECT_FALSE(state_.sampling().has_value());
  EXPECT_FALSE(state_.gradients().has_value());
}

TEST_F(AgentStateTest, RefusesGarbageInADirectiveAndTakesTheRest) {
  const std::vector<std::vector<int>> bad = {{4, 0, 1, 2},  {-1, -1, 1, 2}, {1, 2, 1, 2},
                                             {1, -1, 1, 2}, {1, 1, 0, 2},   {1, 1, -5, 2},
                                             {1, 1, 1, 0},  {1, 1, 1, -1},  {1, 1, 1, 70'000}};
  int64_t id = 0;
  for (const auto& numbers : bad) {
    v1::Directive directive = DirectiveOf();
    directive.mutable_sampling()->set_module(numbers[0]);
    directive.mutable_sampling()->set_first_module(numbers[1]);
    directive.mutable_sampling()->set_interval_steps(numbers[2]);
    directive.mutable_sampling()->set_batch_size(numbers[3]);
    AddPlan(&directive, ++id, 1);
    state_.Apply(directive);
    EXPECT_FALSE(state_.sampling().has_value());
    EXPECT_EQ(state_.watermark(), PlanId(id));
  }
  for (const v1::Directive& directive : {Wanting(0, 4, 1), Wanting(-1, 1, 1), Wanting(2, 1, 1), Wanting(0, 1, -1)}) {
    state_.Apply(directive);
    EXPECT_FALSE(state_.snapshot().has_value());
  }
}

TEST_F(AgentStateTest, RefusesARequestForGradientsThatCannotBeAnswered) {
  for (const std::vector<int>& numbers : std::vector<std::vector<int>>{{4, 1, 1}, {-1, 1, 1}, {0, 0, 1}, {0, 1, -1}}) {
    v1::Directive directive = DirectiveOf();
    directive.mutable_gradients()->set_first_module(numbers[0]);
    directive.mutable_gradients()->set_interval_steps(numbers[1]);
    directive.mutable_gradients()->set_version(numbers[2]);
    state_.Apply(directive);
    EXPECT_FALSE(state_.gradients().has_value()) << directive.ShortDebugString();
  }
}

TEST_F(AgentStateTest, PassesOverADirectiveOfAnotherGeneration) {
  v1::Directive directive = DirectiveOf(2);
  directive.mutable_sampling()->set_interval_steps(1);
  directive.mutable_sampling()->set_batch_size(2);
  AddPlan(&directive, 1, 1);
  state_.Apply(directive);
  EXPECT_FALSE(state_.sampling().has_value());
  EXPECT_EQ(state_.watermark(), PlanId(0));
  EXPECT_FALSE(state_.counters().connected);
}

TEST_F(AgentStateTest, CountsRefusedPlansButNotRepeatedOnes) {
  v1::Directive directive = DirectiveOf();
  AddPlan(&directive, 1, 1);
  state_.Apply(directive);
  state_.Apply(directive);
  EXPECT_EQ(state_.counters().plans_refused, 0);
  directive.clear_plans();
  AddPlan(&directive, 1, 2);
  AddPlan(&directive, 2, 99);
  AddPlan(&directive, 2, 2, /*generation=*/2);
  AddPlan(&directive, 100'000, 2);
  state_.Apply(directive);
  EXPECT_EQ(state_.counters().plans_refused, 4);
  EXPECT_EQ(state_.watermark(), PlanId(1));
  EXPECT_EQ(state_.plan(PlanId(1))->frozen_prefix, 1);
}

TEST_F(AgentStateTest, AsksForASnapshotUntilEveryModuleOfItIsQueued) {
  state_.Apply(Wanting(1, 2, 4));
  ASSERT_TRUE(state_.snapshot().has_value());
  EXPECT_EQ(state_.snapshot()->first_module, ModuleIndex(1));
  EXPECT_TRUE(state_.Offer(TestSnapshot(1, 4)));
  EXPECT_TRUE(state_.snapshot().has_value());
  EXPECT_TRUE(state_.Offer(TestSnapshot(2, 4)));
  EXPECT_FALSE(state_.snapshot().has_value());
  state_.Apply(Wanting(1, 2, 4));
  SendAllUploads();
  EXPECT_FALSE(state_.snapshot().has_value());
  EXPECT_EQ(state_.counters().snapshots_sent, 2);
  state_.Apply(Wanting(1, 2, 5));
  EXPECT_TRUE(state_.snapshot().has_value());
  EXPECT_FALSE(state_.Offer(TestSnapshot(1, 4)));
}

TEST_F(AgentStateTest, AsksAgainForASnapshotThatANewStreamStillWants) {
  state_.Apply(Wanting(1, 2, 4));
  state_.Offer(TestSnapshot(1, 4));
  state_.Offer(TestSnapshot(2, 4));
  const std::optional<Upload> first = state_.TakeUpload();
  state_.UploadSent(*first);  // and perhaps lost on the way
  state_.EndStream(std::nullopt);
  state_.BeginStream();
  EXPECT_FALSE(state_.snapshot().has_value()) << "what is wanted is not known before the first directive";
  EXPECT_FALSE(state_.TakeUpload().has_value()) << "nor what is worth sending";
  state_.Apply(Wanting(1, 2, 4));
  EXPECT_TRUE(state_.snapshot().has_value());
  EXPECT_FALSE(state_.Offer(TestSnapshot(2, 4))) << "this one is still queued";
  EXPECT_TRUE(state_.Offer(TestSnapshot(1, 4)));
  EXPECT_FALSE(state_.snapshot().has_value());
}

TEST_F(AgentStateTest, ServesAControllerThatCountsItsVersionsFromTheBeginningAgain) {
  state_.Apply(Wanting(1, 1, 9));
  state_.Offer(TestSnapshot(1, 9));
  SendAllUploads();
  state_.EndStream(std::nullopt);
  state_.BeginStream();
  state_.Apply(Wanting(1, 1, 1));
  EXPECT_TRUE(state_.snapshot().has_value());
  EXPECT_TRUE(state_.Offer(TestSnapshot(1, 1)));
  EXPECT_FALSE(state_.snapshot().has_value());
}

TEST_F(AgentStateTest, SendsAnInterruptedUploadOnTheNextStream) {
  state_.Apply(DirectiveOf());
  state_.Offer(TestSample(1));
  state_.EndStream(state_.TakeUpload());
  state_.BeginStream();
  state_.Apply(DirectiveOf());
  const std::optional<Upload> again = state_.TakeUpload();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(std::get<Sample>(*again).step, 1);
  EXPECT_EQ(state_.counters().samples_dropped, 0);
}

TEST_F(AgentStateTest, RegistersAgainWithWhatIsSoNow) {
  StepReport report = At(70);
  report.applied_plan = PlanId(2);
  report.frozen_prefix = 1;
  state_.ReportStep(report);
  v1::RegisterJobRequest request;
  state_.FillProgress(&request);
  EXPECT_EQ(request.step(), 70);
  EXPECT_EQ(request.applied_plan(), 2);
  EXPECT_EQ(request.frozen_prefix(), 1);
}

TEST_F(AgentStateTest, WantsAndQueuesNothingAfterGivingUp) {
  v1::Directive directive = Wanting(1, 1, 1);
  directive.mutable_sampling()->set_interval_steps(1);
  directive.mutable_sampling()->set_batch_size(2);
  AddPlan(&directive, 1, 1);
  state_.Apply(directive);
  state_.Offer(TestSample(1));
  state_.GiveUp();
  EXPECT_FALSE(state_.sampling().has_value());
  EXPECT_FALSE(state_.snapshot().has_value());
  EXPECT_FALSE(state_.Offer(TestSample(2)));
  EXPECT_FALSE(state_.Offer(TestSnapshot(1, 1)));
  EXPECT_EQ(state_.counters().samples_dropped, 2);
  EXPECT_EQ(state_.watermark(), PlanId(1)) << "what was received can still be committed";
}

}  // namespace
}  // namespace egeria::worker
