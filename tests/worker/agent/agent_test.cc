#include "worker/agent/agent.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_controller.h"
#include "tests/support/temp_folder.h"
#include "tests/worker/agent/agent_test_job.h"

namespace egeria::worker {
namespace {

using egeria::testing::FakeControllerRecord;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fake_.Start().ok()); }
  void TearDown() override {
    const std::vector<absl::Status> violations = fake_.record().violations;
    for (const absl::Status& violation : violations) ADD_FAILURE() << violation;
  }

  AgentOptions Options() const {
    AgentOptions options;
    options.controller = fake_.address();
    options.reconnect_backoff = absl::Milliseconds(50);
    return options;
  }

  std::unique_ptr<Agent> StartAgent(int rank = 0) { return StartAgent(Options(), TestJob(rank)); }
  std::unique_ptr<Agent> StartAgent(AgentOptions options, JobDescription job) {
    auto agent = Agent::Start(std::move(options), std::move(job));
    EXPECT_TRUE(agent.ok()) << agent.status();
    return agent.ok() ? *std::move(agent) : nullptr;
  }

  // Waits for a heartbeat of `rank` that `condition` holds of.
  bool WaitForHeartbeat(const std::function<bool(const v1::Heartbeat&)>& condition, int rank = 0) {
    return fake_.WaitUntil([&](const FakeControllerRecord& record) {
      const auto heartbeats = record.heartbeats.find(rank);
      if (heartbeats == record.heartbeats.end()) return false;
      return std::any_of(heartbeats->second.begin(), heartbeats->second.end(), condition);
    });
  }
  // Waits until every directive set so far has been applied: the answer to a heartbeat that was sent later
  // than another answer.
  bool WaitForHeartbeats(size_t more) {
    const size_t before = fake_.record().heartbeats[0].size();
    return fake_.WaitUntil([&](const FakeControllerRecord& record) {
      const auto heartbeats = record.heartbeats.find(0);
      return heartbeats != record.heartbeats.end() && heartbeats->second.size() >= before + more;
    });
  }

  // A directive that asks for samples and for the snapshot of modules 0..1.
  static v1::Directive Wishes() {
    v1::Directive directive;
    directive.mutable_sampling()->set_module(1);
    directive.mutable_sampling()->set_first_module(1);
    directive.mutable_sampling()->set_interval_steps(5);
    directive.mutable_sampling()->set_batch_size(8);
    directive.mutable_sampling()->set_version(1);
    directive.mutable_snapshot()->set_module(1);
    directive.mutable_snapshot()->set_first_module(0);
    directive.mutable_snapshot()->set_version(2);
    return directive;
  }
  static v1::Plan PlanOf(int64_t id, int prefix) {
    v1::Plan plan;
    plan.set_plan_id(id);
    plan.set_generation(3);
    plan.set_frozen_prefix(prefix);
    return plan;
  }

  egeria::testing::TempFolder folder_;
  egeria::testing::FakeController fake_{folder_ / "socket"};
};

std::string Bytes(const std::vector<WireTensor>& tensors) {
  std::string bytes;
  for (const WireTensor& tensor : tensors) bytes.append(reinterpret_cast<const char*>(tensor.data()), tensor.size());
  return bytes;
}

TEST_F(AgentTest, RegistersOpensItsStreamAndBeats) {
  const std::unique_ptr<Agent> agent = StartAgent(/*rank=*/1);
  ASSERT_TRUE(fake_.WaitUntil(
      [](const auto& record) { return record.heartbeats.contains(1) && record.heartbeats.at(1).size() >= 3; }));
  const FakeControllerRecord record = fake_.record();
  ASSERT_EQ(record.registrations.size(), 1u);
  EXPECT_EQ(record.registrations[0].training_job(), "test");
  EXPECT_EQ(record.registrations[0].modules_size(), 4);
  ASSERT_EQ(record.opens.size(), 1u);
  EXPECT_EQ(record.opens[0].job_id(), TestJob().job_id.text());
  EXPECT_EQ(record.opens[0].generation(), 3);
  EXPECT_EQ(record.opens[0].rank(), 1);
  EXPECT_TRUE(Eventually([&] { return agent->counters().connected; }));
  EXPECT_EQ(agent->counters().reconnects, 0);
}

TEST_F(AgentTest, GoesByTheGenerationThatTheControllerGivesItsStart) {
  v1::RegisterJobResponse response;
  response.set_generation(5);
  fake_.SetRegisterResponse(response);
  v1::Plan plan;
  plan.set_plan_id(1);
  plan.set_generation(5);
  plan.set_frozen_prefix(2);
  fake_.SetPlans({plan});
  JobDescription job = TestJob();
  job.generation = Generation(0);
  job.start_id = 77;
  const std::unique_ptr<Agent> agent = StartAgent(Options(), job);
  EXPECT_TRUE(Eventually([&] { return agent->watermark() == PlanId(1); }));
  const FakeControllerRecord record = fake_.record();
  EXPECT_EQ(record.registrations[0].start_id(), 77);
  EXPECT_EQ(record.opens[0].generation(), 5);
  EXPECT_EQ(agent->counters().plans_refused, 0);
}

TEST_F(AgentTest, ReportsStepsLossesAndLearningRates) {
  const std::unique_ptr<Agent> agent = StartAgent();
  for (int64_t step = 1; step <= 100; ++step) {
    agent->ReportStep({step, static_cast<float>(step) / 4, {0.5}, 0, PlanId(0)});
  }
  ASSERT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& heartbeat) { return heartbeat.step() == 100; }));
  std::vector<float> losses;
  const std::vector<v1::Heartbeat> heartbeats = fake_.record().heartbeats[0];
  for (const v1::Heartbeat& heartbeat : heartbeats) {
    EXPECT_TRUE(!heartbeat.has_losses() || heartbeat.losses().first_step() == static_cast<int64_t>(losses.size()) + 1);
    losses.insert(losses.end(), heartbeat.losses().values().begin(), heartbeat.losses().values().end());
  }
  ASSERT_EQ(losses.size(), 100u);
  EXPECT_EQ(losses[99], 25.0f);
  EXPECT_THAT(fake_.record().heartbeats[0].back().learning_rates(), ElementsAre(0.5));
}

TEST_F(AgentTest, TakesDirectivesAsStateNotAsEvents) {
  const std::unique_ptr<Agent> agent = StartAgent();
  fake_.SetDirective(Wishes());
  ASSERT_TRUE(Eventually([&] { return agent->sampling().has_value(); }));
  EXPECT_EQ(agent->sampling()->interval_steps, 5);
  EXPECT_EQ(agent->snapshot()->version, 2);
  ASSERT_TRUE(WaitForHeartbeats(3));
  EXPECT_TRUE(agent->sampling().has_value()) << "repeated with every answer";
  fake_.SetDirective({});
  EXPECT_TRUE(Eventually([&] { return !agent->sampling().has_value() && !agent->snapshot().has_value(); }));
}

TEST_F(AgentTest, SendsSamplesByteForByteInChunks) {
  const std::unique_ptr<Agent> agent = StartAgent();
  const Sample small = TestSample(5);
  const Sample large = TestSample(10, 3 * rpc::kMaxChunkBytes / sizeof(float) + 17);
  EXPECT_TRUE(agent->Offer(small));
  EXPECT_TRUE(agent->Offer(large));
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.uploads.size() == 2; }));
  const FakeControllerRecord record = fake_.record();
  EXPECT_EQ(record.uploads[0].bytes, Bytes(small.tensors));
  EXPECT_EQ(record.uploads[0].begin.sample().step(), 5);
  EXPECT_TRUE(record.uploads[1].bytes == Bytes(large.tensors));
  EXPECT_THAT(record.uploads[1].chunk_sizes,
              ElementsAre(rpc::kMaxChunkBytes, rpc::kMaxChunkBytes, rpc::kMaxChunkBytes, 17 * 4 + 4 * 4));
  EXPECT_GT(record.uploads[1].begin.upload_id(), record.uploads[0].begin.upload_id());
  EXPECT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& beat) { return beat.counters().samples_sent() == 2; }));
  EXPECT_EQ(agent->counters().samples_sent, 2);
  EXPECT_EQ(agent->counters().samples_dropped, 0);
}

TEST_F(AgentTest, SendsReadingsAndEmptySnapshotsOfAReferenceOfItsOwn) {
  fake_.SetDirective(Wishes());
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return agent->snapshot().has_value(); }));
  EXPECT_TRUE(agent->Offer(Snapshot{ModuleIndex(1), 4, 2, {}}));
  EXPECT_TRUE(agent->Offer(Reading{ModuleIndex(1), 5, 1, 0.25}));
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.readings.size() == 1; }));
  const FakeControllerRecord record = fake_.record();
  ASSERT_EQ(record.uploads.size(), 1u);
  EXPECT_EQ(record.uploads[0].begin.snapshot().version(), 2);
  EXPECT_EQ(record.uploads[0].begin.tensors_size(), 0);
  EXPECT_EQ(record.readings[0].plasticity(), 0.25);
  EXPECT_GT(record.readings[0].upload_id(), record.uploads[0].begin.upload_id());
  EXPECT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& beat) { return beat.counters().samples_sent() == 1; }));
}

TEST_F(AgentTest, DropsTheOldestReadingsWhileNoControllerAnswers) {
  AgentOptions options = Options();
  options.controller = "unix:" + (folder_ / "nobody");
  options.queue_samples = 2;
  const std::unique_ptr<Agent> agent = StartAgent(options, TestJob());
  for (int64_t step = 1; step <= 5; ++step) EXPECT_TRUE(agent->Offer(Reading{ModuleIndex(0), step, 1, 0.5}));
  EXPECT_EQ(agent->counters().samples_dropped, 3);
}

TEST_F(AgentTest, AnswersARequestForSeveralModulesWithOneSnapshotEach) {
  fake_.SetDirective(Wishes());
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return agent->snapshot().has_value(); }));
  EXPECT_TRUE(agent->Offer(TestSnapshot(0, 2)));
  EXPECT_TRUE(agent->Offer(TestSnapshot(1, 2)));
  EXPECT_FALSE(agent->snapshot().has_value());
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.uploads.size() == 2; }));
  const FakeControllerRecord record = fake_.record();
  for (int module : {0, 1}) {
    EXPECT_EQ(record.uploads[module].begin.snapshot().module(), module);
    EXPECT_EQ(record.uploads[module].begin.snapshot().version(), 2);
    EXPECT_EQ(record.uploads[module].bytes, Bytes(TestSnapshot(module, 2).tensors));
  }
  EXPECT_TRUE(Eventually([&] { return agent->counters().snapshots_sent == 2; }));
}

TEST_F(AgentTest, CountsUploadsThatTheControllerRefuses) {
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  v1::ControllerMessage message;
  message.mutable_upload_result()->set_upload_id(1);
  message.mutable_upload_result()->set_reason("[SAMPLE_NOT_FINITE] tensor 'x'");
  fake_.Send(message);
  EXPECT_TRUE(Eventually([&] { return agent->counters().uploads_refused == 1; }));
}

TEST_F(AgentTest, AcknowledgesPlansUntilTheControllerNeedNotRepeatThem) {
  const std::unique_ptr<Agent> agent = StartAgent();
  fake_.SetPlans({PlanOf(1, 1), PlanOf(3, 3)});  // 2 is still missing
  ASSERT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& beat) { return beat.plan_watermark() == 1; }));
  EXPECT_EQ(agent->watermark(), PlanId(1));
  EXPECT_TRUE(Eventually([&] { return agent->plan(PlanId(3)).has_value(); }));
  fake_.SetPlans({PlanOf(1, 1), PlanOf(2, 2), PlanOf(3, 3)});
  ASSERT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& beat) { return beat.plan_watermark() == 3; }));
  EXPECT_EQ(agent->watermark(), PlanId(3));
  EXPECT_EQ(agent->plan(PlanId(2))->frozen_prefix, 2);
  EXPECT_EQ(agent->counters().plans_refused, 0) << "repeated plans are no error";

  agent->ReportStep({7, std::nullopt, {}, 3, PlanId(3)});
  ASSERT_TRUE(WaitForHeartbeat([](const v1::Heartbeat& beat) { return beat.applied_plan() == 3; }));
  EXPECT_TRUE(agent->plan(PlanId(3)).has_value());
  EXPECT_FALSE(agent->plan(PlanId(2)).has_value());
  EXPECT_EQ(agent->counters().commits, 1);
}

TEST_F(AgentTest, RefusesGarbageAndStaysConnected) {
  const std::unique_ptr<Agent> agent = StartAgent();
  v1::Directive garbage = Wishes();
  garbage.mutable_sampling()->set_module(1'000'000);
  garbage.mutable_snapshot()->set_first_module(-7);
  fake_.SetDirective(garbage);
  v1::Plan stale = PlanOf(1, 1);
  stale.set_generation(2);
  fake_.SetPlans({stale, PlanOf(1, 4), PlanOf(1, -1), PlanOf(INT64_MAX, 1)});
  fake_.Send({});  // a message of no kind
  ASSERT_TRUE(Eventually([&] { return agent->counters().plans_refused >= 4; }));
  EXPECT_EQ(agent->watermark(), PlanId(0));
  EXPECT_FALSE(agent->sampling().has_value());
  EXPECT_FALSE(agent->snapshot().has_value());
  ASSERT_TRUE(WaitForHeartbeats(2));
  EXPECT_EQ(agent->counters().reconnects, 0);
}

TEST_F(AgentTest, DeliversTheFinishedFlagAndTheLastLosses) {
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  agent->ReportStep({41, 0.5f, {}, 0, PlanId(0)});
  agent->ReportStep({50, 0.25f, {}, 0, PlanId(0)});  // a second run of losses
  agent->Stop(/*finished=*/true);
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.half_closes == 1; }));
  const std::vector<v1::Heartbeat> heartbeats = fake_.record().heartbeats[0];
  EXPECT_TRUE(heartbeats.back().finished());
  EXPECT_EQ(heartbeats.back().step(), 50);
  EXPECT_FALSE(heartbeats.front().finished());
  std::vector<float> losses;
  for (const auto& heartbeat : heartbeats) {
    losses.insert(losses.end(), heartbeat.losses().values().begin(), heartbeat.losses().values().end());
  }
  EXPECT_THAT(losses, ElementsAre(0.5f, 0.25f));
  agent->Stop(true);
  agent->Stop(false);
}

TEST_F(AgentTest, SaysGoodbyeWithoutTheFlagWhenTrainingWasInterrupted) {
  std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  agent.reset();
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.half_closes == 1; }));
  EXPECT_FALSE(fake_.record().heartbeats[0].back().finished());
}

TEST_F(AgentTest, DeliversTheFinishedFlagOfAJobThatEndsAtOnce) {
  StartAgent()->Stop(/*finished=*/true);
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.half_closes == 1; }));
  EXPECT_TRUE(fake_.record().heartbeats[0].back().finished());
}

TEST_F(AgentTest, GivesUpAndSaysWhyWhenTheControllerWillNeverTakeTheJob) {
  ::testing::internal::CaptureStderr();
  fake_.RefuseRegistrations(absl::FailedPreconditionError("[STALE_GENERATION] generation 4 has registered"));
  fake_.SetDirective(Wishes());
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return !agent->Offer(TestSample(1)); }));
  EXPECT_FALSE(agent->Offer(TestSnapshot(0, 2)));
  agent->ReportStep({1, 1.0f, {}, 0, PlanId(0)});
  EXPECT_GT(agent->counters().samples_dropped, 0);
  agent->Stop(true);
  EXPECT_EQ(fake_.record().registrations.size(), 1u);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("error"));
  EXPECT_THAT(log, HasSubstr("generation 4 has registered"));
  EXPECT_THAT(log, HasSubstr("EGERIA_JOB_ID"));
}

TEST_F(AgentTest, TriesAgainWhenAnotherProcessHoldsItsRank) {
  AgentOptions options = Options();
  options.reconnect_backoff = absl::Milliseconds(5);
  fake_.RefuseStreams(absl::AlreadyExistsError("[RANK_CONFLICT] rank 0 is taken"));
  const std::unique_ptr<Agent> agent = StartAgent(options, TestJob());
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.registrations.size() >= 3; }));
  fake_.RefuseStreams(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return agent->counters().connected; }));
}

TEST_F(AgentTest, RegistersAgainWhenTheControllerHasForgottenTheJob) {
  fake_.RefuseStreams(absl::NotFoundError("[UNKNOWN_JOB] register first"));
  const std::unique_ptr<Agent> agent = StartAgent();
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.registrations.size() >= 2; }));
  fake_.RefuseStreams(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return agent->counters().connected; }));
}

TEST(AgentStart, RefusesADescriptionThatNoControllerWouldTake) {
  AgentOptions options;
  options.controller = "unix:/nowhere/socket";
  JobDescription job = TestJob();
  job.policy_json = R"({"plasticity": {"windw": 3}})";
  EXPECT_EQ(Agent::Start(options, job).status().code(), absl::StatusCode::kInvalidArgument);
  options.controller = "host:0";
  EXPECT_EQ(Agent::Start(options, TestJob()).status().code(), absl::StatusCode::kInvalidArgument);
  options.controller = "nonsense";
  EXPECT_EQ(Agent::Start(options, TestJob()).status().code(), absl::StatusCode::kInvalidArgument);
  options.controller = "host:1";
  options.tls.ca = "/nowhere/ca.pem";
  EXPECT_FALSE(Agent::Start(options, TestJob()).ok());
}

}  // namespace
}  // namespace egeria::worker
