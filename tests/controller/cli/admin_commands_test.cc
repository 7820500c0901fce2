#include "controller/cli/admin_commands.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "controller/cli/replay_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/test_cluster.h"
#include "tests/support/export_all.h"

namespace egeria::cli {
namespace {

using ::egeria::testing::SimulatedRank;
using ::egeria::testing::TempFolder;
using ::egeria::testing::TestCluster;
using ::egeria::testing::TestJobId;
using ::egeria::testing::TestRegistration;
using ::testing::HasSubstr;
using ::testing::Not;

// A controller with one connected job, and the command line against it.
class AdminCommands : public ::testing::Test {
 protected:
  AdminCommands() : rank_(cluster_.Rank(TestRegistration(1), 0)) { rank_->Connect(); }

  int Run(std::vector<std::string> words, bool with_controller = true) {
    if (with_controller) words.insert(words.end(), {"--controller", cluster_.address()});
    std::vector<const char*> argv = {"egeria"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    in_.clear();
    out_.str("");
    err_.str("");
    return cli::Run(static_cast<int>(argv.size()), argv.data(), {AddReplayCommand, AddAdminCommands},
                    {in_, out_, err_});
  }

  TestCluster cluster_{[](const JobId&, int, int64_t step) -> absl::StatusOr<double> {
    return 1e-3 + 1e-2 * std::exp(-static_cast<double>(step) / 20);
  }};
  std::unique_ptr<SimulatedRank> rank_;
  std::istringstream in_;
  std::ostringstream out_, err_;
};

TEST_F(AdminCommands, ListShowsTheJobs) {
  EXPECT_EQ(Run({"list"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("NAME"), HasSubstr(TestJobId(1)), HasSubstr("job1"), HasSubstr("running"),
                                HasSubstr("0/0/3")));
  EXPECT_EQ(Run({"list", "--json"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\"training_job\":\"job1\""));
}

TEST_F(AdminCommands, FreezeAndUnfreezeMakePlans) {
  EXPECT_EQ(Run({"freeze", "job1", "2", "--reason", "to see"}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "plan 1: frozen prefix 2\n");
  EXPECT_EQ(Run({"unfreeze", TestJobId(1)}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "plan 2: frozen prefix 0\n");
  EXPECT_EQ(Run({"export", TestJobId(1), "--decisions"}), 0);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("\"reason\":\"to see\""), HasSubstr("\"action\":\"unfreeze\"")));
  EXPECT_EQ(Run({"freeze", "job1", "3"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("[BAD_PREFIX]"));
}

TEST_F(AdminCommands, FreezeIsVetoedUnlessItIsForced) {
  auto job = TestRegistration(2);
  job.set_total_steps(1'000);
  job.mutable_policy()->mutable_auto_();
  auto rank = cluster_.Rank(job, 0);
  rank->Connect();
  EXPECT_EQ(Run({"freeze", "job2", "1"}), 1);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("[VETOED]"), HasSubstr("before 82 %"), HasSubstr("--force")));
  EXPECT_EQ(Run({"freeze", "job2", "1", "--force"}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "plan 1: frozen prefix 1\n");
}

// Over a real stream: what is asked for is told, decided by, exported and decided again by `egeria replay`.
TEST_F(AdminCommands, ReplayOfAnExportWithGradientsGivesTheSameDecisions) {
  auto job = TestRegistration(2, 4);
  job.set_total_steps(1'000);
  job.mutable_policy()->mutable_snr();
  for (v1::LayerModule& module : *job.mutable_modules()) module.set_step_share(0.2);
  auto rank = cluster_.Rank(job, 0);
  rank->Connect();
  for (int64_t step = 330; step < 500; ++step) {
    const v1::Directive directive = rank->BeatAt(step);
    if (!directive.has_gradients()) continue;
    v1::WorkerMessage message;
    v1::GradientReading* reading = message.mutable_gradients();
    reading->set_step(step);
    reading->set_request_version(directive.gradients().version());
    reading->set_first_module(directive.gradients().first_module());
    reading->set_parts(2);
    for (int module = reading->first_module(); module < 4; ++module) {
      reading->add_mean_of_squares(1);
      reading->add_square_of_mean(0.5 + (step % 2 == 0 ? 0.004 : -0.001));
    }
    rank->Send(message);
  }
  rank->BeatAt(500);
  ASSERT_GE(cluster_.Summary(TestJobId(2)).plan_id(), 2);
  ASSERT_EQ(Run({"export", "job2", "--decisions"}), 0) << err_.str();
  const std::string decisions = out_.str();
  ASSERT_EQ(Run({"export", "job2"}), 0) << err_.str();
  in_.str(out_.str());
  ASSERT_EQ(Run({"replay", "-", "--policy", "snr"}, false), 0) << err_.str();
  std::istringstream replayed(out_.str()), decided(decisions);
  std::string line, record;
  int lines = 0;
  while (std::getline(decided, record)) {
    ASSERT_TRUE(std::getline(replayed, line)) << record;
    const auto parsed = nlohmann::json::parse(line), expected = nlohmann::json::parse(record);
    for (const char* key : {"step", "action", "frozen_prefix", "reason"}) EXPECT_EQ(parsed[key], expected[key]);
    ++lines;
  }
  EXPECT_GE(lines, 2);
  EXPECT_FALSE(std::getline(replayed, line)) << line;
}

TEST_F(AdminCommands, PauseResumeAndModeChangeTheJob) {
  EXPECT_EQ(Run({"pause", "00000001"}), 0) << err_.str();
  EXPECT_TRUE(cluster_.Summary(TestJobId(1)).paused());
  EXPECT_EQ(Run({"resume", "job1"}), 0);
  EXPECT_FALSE(cluster_.Summary(TestJobId(1)).paused());
  EXPECT_EQ(Run({"mode", "job1", "observe"}), 0);
  EXPECT_EQ(cluster_.Summary(TestJobId(1)).mode(), v1::MODE_OBSERVE);
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("observing"));
  EXPECT_EQ(Run({"freeze", "job1", "1"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("[OBSERVE_MODE]"));
  EXPECT_EQ(Run({"mode", "job1", "act"}), 0);
  EXPECT_EQ(Run({"mode", "job1", "sideways"}), 2);
}

// `egeria replay` decides on the output of `egeria export` as the controller did.
TEST_F(AdminCommands, ReplayOfAnExportGivesTheSameDecisions) {
  int64_t step = 0;
  for (v1::Directive directive = rank_->Beat(); cluster_.Summary(TestJobId(1)).plan_id() < 2 && step < 5'000;) {
    step += 10;
    rank_->Serve(directive, step);
    directive = rank_->BeatAt(step);
  }
  ASSERT_EQ(Run({"export", "job1"}), 0) << err_.str();
  const std::string recording = out_.str();
  EXPECT_THAT(recording, Not(HasSubstr("reason")));
  in_.str(recording);
  ASSERT_EQ(Run({"replay", "-", "--modules", "3", "--interval", "10", "--window", "3", "--bootstrap", "off"}, false), 0)
      << err_.str();
  std::istringstream lines(out_.str());
  const auto records = testing::ExportAll(*cluster_.manager(), JobId(TestJobId(1)));
  ASSERT_TRUE(records.ok());
  int decisions = 0;
  for (const v1::ExportRecord& record : *records) {
    if (!record.has_decision()) continue;
    ++decisions;
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_THAT(line, HasSubstr(absl::StrCat("\"step\":", record.decision().step(), ",")));
    EXPECT_THAT(line, HasSubstr(absl::StrCat("\"frozen_prefix\":", record.decision().frozen_prefix())));
  }
  EXPECT_EQ(decisions, 2);
  std::string rest;
  EXPECT_FALSE(std::getline(lines, rest)) << rest;
}

TEST_F(AdminCommands, SayWhichJobsAreMeantWhereItIsUnclear) {
  auto twin = TestRegistration(2);
  twin.set_training_job("job1");
  auto rank = cluster_.Rank(twin, 0);
  rank->Connect();
  EXPECT_EQ(Run({"pause", "job1"}), 2);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr(TestJobId(1)), HasSubstr(TestJobId(2))));
  EXPECT_EQ(Run({"pause", "nobody"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("no job is called 'nobody'"));
  EXPECT_EQ(Run({"pause", TestJobId(9)}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("[UNKNOWN_JOB]"));
}

TEST_F(AdminCommands, SayThatNoControllerAnswers) {
  const TempFolder folder;
  EXPECT_EQ(Run({"list", "--controller", "unix:" + folder.path() + "/nobody"}, false), 1);
  EXPECT_THAT(err_.str(), HasSubstr("no controller answers at unix:" + folder.path()));
  EXPECT_EQ(Run({"list", "--controller", "nonsense"}, false), 2);
}

TEST_F(AdminCommands, WaitForAControllerThatStarts) {
  const TempFolder folder;
  const std::string socket = folder.path() + "/controller";
  std::thread starts([&] {
    absl::SleepFor(absl::Milliseconds(300));
    std::filesystem::create_symlink(cluster_.address().substr(5) + ".admin", socket + ".admin");  // 5: "unix:"
  });
  EXPECT_EQ(Run({"list", "--wait", "20", "--controller", "unix:" + socket}, false), 0) << err_.str();
  starts.join();
  EXPECT_THAT(out_.str(), HasSubstr("job1"));
}

TEST_F(AdminCommands, WaitNoLongerThanAsked) {
  const TempFolder folder;
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Run({"list", "--wait", "0.5", "--controller", "unix:" + folder.path() + "/nobody"}, false), 1);
  EXPECT_GE(absl::Now() - begin, absl::Seconds(0.5));
  EXPECT_THAT(err_.str(), HasSubstr("no controller answers"));
}

TEST_F(AdminCommands, AnAddressThatIsGivenCountsMoreThanTheVariable) {
  setenv("EGERIA_CONTROLLER", "none", 1);
  EXPECT_EQ(Run({"list"}), 0) << err_.str();
  unsetenv("EGERIA_CONTROLLER");
}

}  // namespace
}  // namespace egeria::cli
