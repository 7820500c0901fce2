// The agent while its controller is absent, dead, stopped, slow or restarted, and in a forked child.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/fake_controller.h"
#include "tests/support/temp_folder.h"
#include "tests/worker/agent/agent_test_job.h"
#include "worker/agent/agent.h"

namespace egeria::worker {
namespace {

using egeria::testing::ChildProcess;
using egeria::testing::FakeController;
using egeria::testing::TempFolder;
using ::testing::HasSubstr;

// Far above what any of it takes; a call that waits for the network would exceed it.
constexpr absl::Duration kPrompt = absl::Seconds(10);

std::unique_ptr<Agent> StartAgent(const std::string& controller) {
  AgentOptions options;
  options.controller = controller;
  options.reconnect_backoff = absl::Milliseconds(50);
  options.heartbeat_interval = absl::Milliseconds(50);
  auto agent = Agent::Start(options, TestJob());
  EXPECT_TRUE(agent.ok()) << agent.status();
  return *std::move(agent);
}

// Every call that a training loop makes, 2,000 times; returns how long all took.
absl::Duration Train(Agent& agent) {
  const absl::Time start = absl::Now();
  for (int64_t step = 1; step <= 2000; ++step) {
    agent.ReportStep({step, 1.0f, {0.1}, 0, PlanId(0)});
    agent.sampling();
    agent.snapshot();
    agent.watermark();
    agent.plan(PlanId(1));
    agent.counters();
    agent.Offer(TestSample(step, 256));
    if (step % 100 == 0) agent.Offer(TestSnapshot(0, step));
  }
  return absl::Now() - start;
}

absl::Duration TimeToStop(Agent& agent) {
  const absl::Time start = absl::Now();
  agent.Stop(true);
  return absl::Now() - start;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(AgentFaults, AnAbsentControllerCostsSamplesAndOneWarning) {
  ::testing::internal::CaptureStderr();
  TempFolder folder;
  const std::unique_ptr<Agent> agent = StartAgent("unix:" + (folder / "nobody"));
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_FALSE(agent->sampling().has_value());
  EXPECT_FALSE(agent->counters().connected);
  EXPECT_EQ(agent->counters().samples_dropped, 2000 - 8);
  EXPECT_LT(TimeToStop(*agent), kPrompt);
  EXPECT_LE(Count(::testing::internal::GetCapturedStderr(), "No connection"), 1u);
}

TEST(AgentFaults, AControllerThatComesLateIsFound) {
  ::testing::internal::CaptureStderr();
  TempFolder folder;
  FakeController fake(folder / "socket");
  const std::unique_ptr<Agent> agent = StartAgent(fake.address());
  for (int64_t step = 1; step <= 3; ++step) agent->Offer(TestSample(step));
  ASSERT_TRUE(fake.Start().ok());
  EXPECT_TRUE(fake.WaitUntil([](const auto& record) { return record.uploads.size() == 3; }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("Connected to the controller"));
}

TEST(AgentFaults, ARestartedControllerIsFoundAgainAndToldEverything) {
  ::testing::internal::CaptureStderr();
  TempFolder folder;
  FakeController fake(folder / "socket");
  ASSERT_TRUE(fake.Start().ok());
  v1::Directive directive;
  directive.set_loss_watermark(1);
  fake.SetDirective(directive);
  const std::unique_ptr<Agent> agent = StartAgent(fake.address());
  agent->ReportStep({1, 1.0f, {}, 0, PlanId(0)});
  agent->ReportStep({2, 2.0f, {}, 0, PlanId(0)});
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  ASSERT_TRUE(fake.WaitUntil([](const auto& record) { return record.heartbeats.at(0).back().step() == 2; }));
  const uint64_t incarnation = fake.record().opens[0].incarnation();

  fake.Stop();
  ASSERT_TRUE(Eventually([&] { return !agent->counters().connected; }));
  fake.ClearRecord();
  agent->ReportStep({3, 3.0f, {}, 0, PlanId(0)});
  EXPECT_LT(Train(*agent), kPrompt);
  ASSERT_TRUE(fake.Start().ok());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  EXPECT_EQ(agent->counters().reconnects, 1);
  const auto record = fake.record();
  ASSERT_FALSE(record.registrations.empty());
  EXPECT_EQ(record.registrations.back().step(), 2000);
  EXPECT_EQ(record.opens.back().incarnation(), incarnation);
  EXPECT_EQ(record.heartbeats.at(0)[0].losses().first_step(), 2) << "step 1 was recorded";
  EXPECT_GT(agent->counters().samples_dropped, 0);
  ASSERT_TRUE(fake.WaitUntil([](const auto& r) { return r.uploads.size() >= 8; })) << "what was kept is sent";
  EXPECT_THAT(fake.record().violations, ::testing::IsEmpty());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(log, "No connection"), 1u) << log;
  EXPECT_EQ(Count(log, "is back"), 1u) << log;
}

TEST(AgentFaults, AControllerThatStartsWithTheJobIsWaitedForInSilence) {
  ::testing::internal::CaptureStderr();
  TempFolder folder;
  FakeController fake(folder / "socket");
  AgentOptions options;
  options.controller = fake.address();
  options.reconnect_backoff = absl::Seconds(100);
  options.starts_with_job = true;
  auto agent = Agent::Start(options, TestJob());
  ASSERT_TRUE(agent.ok()) << agent.status();
  absl::SleepFor(absl::Milliseconds(100));
  ASSERT_TRUE(fake.Start().ok());
  EXPECT_TRUE(Eventually([&] { return (*agent)->counters().connected; })) << "it is tried often";
  fake.Stop();
  EXPECT_TRUE(Eventually([&] { return !(*agent)->counters().connected; }));
  (*agent)->Stop(/*finished=*/true);
  EXPECT_EQ(Count(::testing::internal::GetCapturedStderr(), "No connection"), 0u);
}

TEST(AgentFaults, AControllerThatIsConnectedButSilentIsLeftAndFoundAgain) {
  ::testing::internal::CaptureStderr();
  TempFolder folder;
  FakeController fake(folder / "socket");
  ASSERT_TRUE(fake.Start().ok());
  AgentOptions options;
  options.controller = fake.address();
  options.reconnect_backoff = absl::Milliseconds(50);
  options.heartbeat_interval = absl::Milliseconds(50);
  options.silence_limit = absl::Milliseconds(500);
  auto agent = Agent::Start(options, TestJob());
  ASSERT_TRUE(agent.ok()) << agent.status();
  ASSERT_TRUE(Eventually([&] { return (*agent)->counters().connected; }));
  fake.SetMute(true);
  EXPECT_TRUE(Eventually([&] { return !(*agent)->counters().connected; }));
  fake.SetMute(false);
  EXPECT_TRUE(Eventually([&] { return (*agent)->counters().connected; }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("[NO_ANSWER]"));
}

TEST(AgentFaults, PlansThatWereLostWithAStreamComeAgain) {
  TempFolder folder;
  FakeController fake(folder / "socket");
  ASSERT_TRUE(fake.Start().ok());
  const std::unique_ptr<Agent> agent = StartAgent(fake.address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  fake.Stop();
  v1::Plan plan;
  plan.set_plan_id(1);
  plan.set_generation(3);
  plan.set_frozen_prefix(2);
  fake.SetPlans({plan});
  ASSERT_TRUE(fake.Start().ok());
  EXPECT_TRUE(Eventually([&] { return agent->watermark() == PlanId(1); }));
}

TEST(AgentFaults, ASlowControllerHoldsBackUploadsButNotTraining) {
  TempFolder folder;
  FakeController fake(folder / "socket");
  ASSERT_TRUE(fake.Start().ok());
  const std::unique_ptr<Agent> agent = StartAgent(fake.address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  fake.HoldReading(true);
  absl::Duration offering;
  for (int64_t step = 1; step <= 50; ++step) {
    Sample sample = TestSample(step, size_t{1} << 20);  // 4 MiB, more than flow control lets pass
    const absl::Time start = absl::Now();
    agent->Offer(std::move(sample));
    offering += absl::Now() - start;
  }
  EXPECT_LT(offering, kPrompt);
  EXPECT_GT(agent->counters().samples_dropped, 0);
  const int64_t dropped = agent->counters().samples_dropped;
  fake.HoldReading(false);
  EXPECT_TRUE(
      fake.WaitUntil([&](const auto& record) { return static_cast<int64_t>(record.uploads.size()) + dropped >= 50; }));
  EXPECT_THAT(fake.record().violations, ::testing::IsEmpty());
}

TEST(AgentFaults, AMuteControllerHoldsNothingUp) {
  TempFolder folder;
  FakeController fake(folder / "socket");
  fake.SetMute(true);
  ASSERT_TRUE(fake.Start().ok());
  const std::unique_ptr<Agent> agent = StartAgent(fake.address());
  ASSERT_TRUE(fake.WaitUntil([](const auto& record) { return !record.heartbeats.empty(); }));
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_FALSE(agent->counters().connected);
  EXPECT_LT(TimeToStop(*agent), kPrompt);
}

class ControllerProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    auto process = ChildProcess::Start({FAKE_CONTROLLER, folder_ / "socket"});
    ASSERT_TRUE(process.ok()) << process.status();
    process_.emplace(*std::move(process));
    ASSERT_EQ(process_->ReadLine(), "ready");
  }
  std::string address() const { return "unix:" + (folder_ / "socket"); }

  TempFolder folder_;
  std::optional<ChildProcess> process_;
};

TEST_F(ControllerProcess, MayBeStoppedAndGoOnLater) {
  const std::unique_ptr<Agent> agent = StartAgent(address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  process_->Signal(SIGSTOP);
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_TRUE(Eventually([&] { return !agent->counters().connected; })) << "keepalive notices a stopped peer";
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_GT(agent->counters().samples_dropped, 0);
  process_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return agent->counters().connected; }));
  EXPECT_GE(agent->counters().reconnects, 1);
}

// The socket's buffer is full then, so that no keepalive ping gets out.
TEST_F(ControllerProcess, MayBeStoppedInTheMiddleOfALargeUpload) {
  const std::unique_ptr<Agent> agent = StartAgent(address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  agent->Offer(TestSample(0, size_t{8} << 20));  // opens the flow control window
  ASSERT_TRUE(Eventually([&] { return agent->counters().samples_sent == 1; }));
  process_->Signal(SIGSTOP);
  for (int64_t step = 1; step <= 8; ++step) agent->Offer(TestSample(step, size_t{2} << 20));
  EXPECT_TRUE(Eventually([&] { return !agent->counters().connected; }));
  process_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return agent->counters().samples_sent == 9; }));
  EXPECT_LT(TimeToStop(*agent), kPrompt);
}

TEST_F(ControllerProcess, ThatIsStoppedDoesNotKeepAnAgentFromStopping) {
  const std::unique_ptr<Agent> agent = StartAgent(address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  process_->Signal(SIGSTOP);
  EXPECT_LT(TimeToStop(*agent), kPrompt);
  process_->Signal(SIGCONT);
}

TEST_F(ControllerProcess, ThatIsStoppedBeforeTheAgentComesDoesNotKeepItFromStoppingEither) {
  process_->Signal(SIGSTOP);
  const std::unique_ptr<Agent> agent = StartAgent(address());
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_LT(TimeToStop(*agent), kPrompt);
  process_->Signal(SIGCONT);
}

TEST_F(ControllerProcess, MayBeKilled) {
  const std::unique_ptr<Agent> agent = StartAgent(address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  process_->Signal(SIGKILL);
  process_->Wait();
  EXPECT_TRUE(Eventually([&] { return !agent->counters().connected; }));
  EXPECT_LT(Train(*agent), kPrompt);
  EXPECT_LT(TimeToStop(*agent), kPrompt);
}

TEST(AgentFork, DoesNothingInAChildAndGoesOnInTheParent) {
  TempFolder folder;
  FakeController fake(folder / "socket");
  ASSERT_TRUE(fake.Start().ok());
  std::unique_ptr<Agent> agent = StartAgent(fake.address());
  ASSERT_TRUE(Eventually([&] { return agent->counters().connected; }));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // No test macro and no exit handler here: the child only tells by its exit code.
    alarm(20);
    agent->ReportStep({1, 1.0f, {}, 0, PlanId(0)});
    bool quiet = !agent->Offer(TestSample(1)) && !agent->Offer(TestSnapshot(0, 1));
    quiet = quiet && !agent->sampling().has_value() && !agent->snapshot().has_value();
    quiet = quiet && agent->watermark() == PlanId(0) && !agent->plan(PlanId(1)).has_value();
    quiet = quiet && !agent->counters().connected;
    agent->Stop(true);
    agent.reset();
    _exit(quiet ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(agent->Offer(TestSample(1)));
  EXPECT_TRUE(fake.WaitUntil([](const auto& record) { return record.uploads.size() == 1; }));
  agent->Stop(true);
  EXPECT_TRUE(fake.record().heartbeats[0].back().finished());
}

}  // namespace
}  // namespace egeria::worker
