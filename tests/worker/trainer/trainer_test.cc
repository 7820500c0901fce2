#include "worker/trainer/trainer.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "worker/planning/planned_saving.h"
#include "worker/trainer/checkpoint.h"
#include "worker/trainer/data/random.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/schedule.h"

namespace egeria::trainer {
namespace {

using ::egeria::testing::ChildProcess;
using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// A digits file of two easily told classes, in a folder with room for checkpoints.
class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    const uint32_t header[] = {1, 200, 160, 8, 8, 2, 16};
    std::string file = "EGDIGITS", pixels, labels;
    file.append(reinterpret_cast<const char*>(header), sizeof(header));
    Random random({4});
    for (int i = 0; i < 200; ++i) {
      const int label = i % 2;
      labels.push_back(static_cast<char>(label));
      for (int p = 0; p < 64; ++p)
        pixels.push_back(static_cast<char>(random.Below(9) + ((p / 8 < 4) == (label == 1) ? 8 : 0)));
    }
    std::ofstream(folder_ / "digits.bin", std::ios::binary) << file << pixels << labels;
    options_.task = "digits";
    options_.data = folder_.path();
    options_.epochs = 4;
    options_.batch_size = 8;
    options_.threads = 1;
    EXPECT_TRUE(ResolveOptions(&options_).ok());
  }

  std::string Path(const std::string& name) const { return folder_ / name; }
  void WritePlans(const std::string& json) {
    std::ofstream(folder_ / "plans.json") << json;
    options_.plans = Path("plans.json");
  }

  // Rank 0's answer; all ranks must give the same kind.
  static absl::StatusOr<RunSummary> TrainOn(int ranks, const Options& options) {
    std::vector<absl::StatusOr<RunSummary>> answers(ranks, absl::UnknownError("did not run"));
    RunRanks(ranks, [&](const worker::GroupMember& member) {
      Launch launch;
      launch.member = member;
      if (ranks > 1) {
        launch.training_group = GlooGroup(member, "training");
        launch.commit_group = GlooGroup(member, "commit");
      }
      answers[member.rank] = Train(options, launch, c10::kCPU);
    });
    for (const auto& answer : answers) EXPECT_EQ(answer.status().code(), answers[0].status().code());
    return answers[0];
  }

  const testing::TempFolder folder_;
  Options options_;
};

TEST_F(TrainerTest, LearnsOnTwoRanksWhichStayIdentical) {
  const auto run = TrainOn(2, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps, 40);
  EXPECT_GT(run->accuracy, 0.95);
  EXPECT_LT(run->validation_loss, 0.3);
  EXPECT_TRUE(run->ranks_identical);
  EXPECT_EQ(run->mode, "plain");
  EXPECT_EQ(run->frozen_share, 0);
}

TEST_F(TrainerTest, TheSameSeedGivesTheSameRun) {
  const auto first = TrainOn(2, options_), again = TrainOn(2, options_);
  options_.seed = 2;
  const auto other = TrainOn(2, options_);
  EXPECT_EQ(first->parameters_hash, again->parameters_hash);
  EXPECT_NE(first->parameters_hash, other->parameters_hash);
}

TEST_F(TrainerTest, FollowsPlansAndCountsTheFrozenShareAndTheSavedBytes) {
  const auto plain = TrainOn(2, options_);
  WritePlans("[{\"step\": 10, \"frozen_prefix\": 4}, {\"step\": 30, \"frozen_prefix\": 0}]");
  const auto run = TrainOn(2, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->decisions.size(), 2u);
  EXPECT_EQ(run->decisions[0].step, 10);
  EXPECT_EQ(run->decisions[1].action, "unfreeze");
  EXPECT_TRUE(run->ranks_identical);
  // 20 of 40 steps train only the head: 64 x 2 weights and 2 biases.
  const double parameters = plain->bytes_all_reduced / 40.0 / 4;
  EXPECT_DOUBLE_EQ(run->frozen_share, 0.5 * (parameters - 130) / parameters);
  EXPECT_EQ(run->bytes_all_reduced, plain->bytes_all_reduced / 2 + 20 * 130 * 4);
}

TEST_F(TrainerTest, AResumedRunEqualsTheUninterruptedOneInsideAFrozenPhase) {
  WritePlans(
      "[{\"step\": 6, \"frozen_prefix\": 3}, {\"step\": 26, \"frozen_prefix\": 1}, {\"step\": 33, "
      "\"frozen_prefix\": 2}]");
  for (const int ranks : {1, 2}) {
    options_.checkpoint_every = 5;
    options_.checkpoint = Path("whole.ckpt");
    const auto whole = TrainOn(ranks, options_);
    ASSERT_TRUE(whole.ok()) << whole.status();
    options_.checkpoint = Path("parts.ckpt");
    for (const int64_t stop : {15, 20, 30, 0}) {  // frozen, frozen, after a partial unfreeze, to the end
      options_.stop_after = stop;
      options_.resume = stop != 15;
      const auto part = TrainOn(ranks, options_);
      ASSERT_TRUE(part.ok()) << part.status();
      if (stop != 0) {
        EXPECT_NE(part->parameters_hash, whole->parameters_hash);
        continue;
      }
      EXPECT_EQ(part->parameters_hash, whole->parameters_hash) << ranks << " ranks";
      EXPECT_EQ(part->decisions.size(), 3u) << "those before the checkpoint included";
      EXPECT_DOUBLE_EQ(part->frozen_share, whole->frozen_share);
      EXPECT_DOUBLE_EQ(part->validation_loss, whole->validation_loss);
    }
    options_.resume = false;
    options_.stop_after = 0;
    fs::remove(Path("parts.ckpt"));
  }
}

TEST_F(TrainerTest, ASignalStopsAllRanksAtOneStepAndTheNextRunEndsTheSame) {
  signal(SIGUSR1, SIG_IGN);  // until the run takes it over
  for (const int ranks : {1, 2}) {
    options_.checkpoint = Path("whole.ckpt");
    const auto whole = TrainOn(ranks, options_);
    ASSERT_TRUE(whole.ok()) << whole.status();
    options_.checkpoint = Path("parts.ckpt");
    options_.stop_on_signal = true;
    std::atomic<bool> ended = false;
    std::thread sender([&ended] {
      for (; !ended; std::this_thread::sleep_for(std::chrono::milliseconds(1))) kill(getpid(), SIGUSR1);
    });
    const auto part = TrainOn(ranks, options_);
    ended = true;
    sender.join();
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_LT(part->steps, whole->steps);
    EXPECT_TRUE(part->ranks_identical);
    options_.stop_on_signal = false;
    options_.resume = true;
    const auto rest = TrainOn(ranks, options_);
    ASSERT_TRUE(rest.ok()) << rest.status();
    EXPECT_EQ(rest->parameters_hash, whole->parameters_hash) << ranks << " ranks";
    options_.resume = false;
    fs::remove(Path("parts.ckpt"));
  }
}

TEST_F(TrainerTest, ResumingWithoutACheckpointStartsFromTheBeginning) {
  options_.checkpoint = Path("none.ckpt");
  options_.resume = true;
  const auto run = TrainOn(1, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps, 80);
  EXPECT_TRUE(fs::exists(Path("none.ckpt")));
}

TEST_F(TrainerTest, AnotherNumberOfRanksGoesOnWhereAsManySamplesHaveBeenSeen) {
  WritePlans(R"([{"step": 10, "frozen_prefix": 1}, {"step": 36, "frozen_prefix": 2}])");
  options_.checkpoint = Path("elastic.ckpt");
  options_.stop_after = 15;
  ASSERT_TRUE(TrainOn(2, options_).ok());
  options_.stop_after = 0;
  options_.resume = true;
  for (const int ranks : {1, 3}) {
    fs::copy_file(Path("elastic.ckpt"), Path("used.ckpt"), fs::copy_options::overwrite_existing);
    Options resumed = options_;
    resumed.checkpoint = Path("used.ckpt");
    const auto run = TrainOn(ranks, resumed);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->steps, ranks == 1 ? 80 : 24);
    EXPECT_TRUE(run->ranks_identical);
    ASSERT_GE(run->decisions.size(), 1u);
    EXPECT_EQ(run->decisions[0].frozen_prefix, 1);
    EXPECT_EQ(run->decisions[0].step, ranks == 1 ? 20 : 6);
    EXPECT_EQ(run->decisions.size(), ranks == 1 ? 2u : 1u) << "a plan for a step that is still to come counts";
  }
}

TEST_F(TrainerTest, ACheckpointOfAnotherRunIsRefusedWithWhatDiffers) {
  options_.checkpoint = Path("a.ckpt");
  ASSERT_TRUE(TrainOn(1, options_).ok());
  options_.resume = true;
  options_.batch_size = 4;
  const absl::Status status = TrainOn(1, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("[CHECKPOINT_MISMATCH]"), HasSubstr("batch 8"), HasSubstr("batch 4")));
}

TEST_F(TrainerTest, ADamagedCheckpointIsNamed) {
  options_.checkpoint = Path("a.ckpt");
  options_.stop_after = 5;
  ASSERT_TRUE(TrainOn(1, options_).ok());
  std::ifstream in(Path("a.ckpt"), std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  ASSERT_TRUE(Decode(whole).ok());
  for (const double share : {0.0, 0.3, 0.9}) {
    EXPECT_THAT(std::string(Decode(whole.substr(0, static_cast<size_t>(share * whole.size()))).status().message()),
                HasSubstr("[BAD_CHECKPOINT]"));
  }
  EXPECT_THAT(std::string(Decode(std::string(whole.size(), 'x')).status().message()), HasSubstr("[BAD_CHECKPOINT]"));
}

TEST_F(TrainerTest, AControllerThatNeverStartedLeavesTheRunAsItWas) {
  const auto plain = TrainOn(2, options_);
  options_.controller = "unix:" + Path("nobody.sock");
  options_.policy = "plasticity";
  const auto run = TrainOn(2, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->parameters_hash, plain->parameters_hash);
  EXPECT_EQ(run->mode, "act");
  EXPECT_TRUE(run->decisions.empty());
}

TEST_F(TrainerTest, AnExpectedSavingBuysStepsAtTheLearningRatesOfALongerTraining) {
  options_.schedule = "cosine";
  options_.reinvest = true;
  options_.reinvest_saving = 0.2;
  const auto whole = TrainOn(2, options_);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->steps, 50) << "40 / .8";
  EXPECT_EQ(whole->epochs, 5);
  Options longer = options_;
  longer.reinvest = false;
  longer.epochs = 5;
  EXPECT_EQ(TrainOn(2, longer)->parameters_hash, whole->parameters_hash);
}

TEST_F(TrainerTest, WhatThePolicyPlansToSaveBuysStepsAndAResumedRunKeepsThem) {
  options_.controller = "unix:" + Path("nobody.sock");
  options_.policy = "schedule";
  options_.freeze_at = {"0.5:3"};
  options_.reinvest = true;
  options_.checkpoint = Path("a.ckpt");
  options_.stop_after = 20;
  ASSERT_TRUE(TrainOn(2, options_).ok());
  std::ifstream in(Path("a.ckpt"), std::ios::binary);
  const auto checkpoint = Decode(std::string(std::istreambuf_iterator<char>(in), {}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_GT(checkpoint->reinvested_saving, 0);
  EXPECT_LT(checkpoint->reinvested_saving, 0.5);
  options_.stop_after = 0;
  options_.resume = true;
  const auto run = TrainOn(2, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps, worker::ReinvestedSteps(40, checkpoint->reinvested_saving));
}

TEST_F(TrainerTest, WhatAPolicyWillSaveThatWaitsForReadingsHasToBeSaid) {
  options_.controller = "unix:" + Path("nobody.sock");
  options_.policy = "plasticity";
  options_.reinvest = true;
  EXPECT_THAT(std::string(TrainOn(2, options_).status().message()),
              ::testing::AllOf(HasSubstr("[NO_PLAN]"), HasSubstr("give the saving that you expect")));
  options_.reinvest_saving = 0.1;
  EXPECT_EQ(TrainOn(2, options_)->steps, 44);
}

TEST_F(TrainerTest, AResumedRunTellsWhatWasSavedBefore) {
  WritePlans("[{\"step\": 10, \"frozen_prefix\": 3}, {\"step\": 20, \"frozen_prefix\": 1}]");
  options_.checkpoint = Path("a.ckpt");
  options_.stop_after = 30;
  ASSERT_TRUE(TrainOn(1, options_).ok());
  options_.plans.clear();
  options_.stop_after = 0;
  options_.resume = true;
  options_.policy = "plasticity";
  options_.controller = "unix:" + Path("fake.sock");
  absl::StatusOr<ChildProcess> controller = ChildProcess::Start({FAKE_CONTROLLER, Path("fake.sock")});
  ASSERT_TRUE(controller.ok()) << controller.status();
  ASSERT_EQ(controller->ReadLine(), "ready");
  ASSERT_TRUE(TrainOn(1, options_).ok());
  controller->CloseStdin();
  const nlohmann::json told = nlohmann::json::parse(controller->ReadLine().value());
  const nlohmann::json& registration = told["registration"];
  const auto share = [&](int module) { return registration["modules"][module]["step_share"].get<double>(); };
  EXPECT_GT(share(0), 0);
  EXPECT_NEAR(registration["saved_before"].get<double>(), (10 * (share(0) + share(1) + share(2)) + 10 * share(0)) / 80,
              1e-9);
}

TEST_F(TrainerTest, AResumedRunTellsTheMeanRateBeforeWhereItsCheckpointDoes) {
  options_.checkpoint = Path("a.ckpt");
  options_.stop_after = 30;
  ASSERT_TRUE(TrainOn(1, options_).ok());
  std::ifstream in(Path("a.ckpt"), std::ios::binary);
  absl::StatusOr<Checkpoint> checkpoint = Decode(std::string(std::istreambuf_iterator<char>(in), {}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const LearningRateOptions schedule = {*ParseScheduleKind(options_.schedule),
                                        options_.learning_rate,
                                        80,
                                        options_.warmup_steps,
                                        options_.milestones,
                                        options_.gamma};
  double sum = 0;
  for (int64_t step = 0; step < 30; ++step) sum += LearningRate(schedule, step);
  EXPECT_DOUBLE_EQ(checkpoint->learning_rate_sum.value_or(0), sum);
  options_.stop_after = 31;
  options_.resume = true;
  for (const bool known : {true, false}) {
    if (!known) checkpoint->learning_rate_sum.reset();  // as an older version has written it
    std::ofstream(Path("a.ckpt"), std::ios::binary) << *Encode(*checkpoint);
    const std::string socket = known ? Path("known.sock") : Path("unknown.sock");
    absl::StatusOr<ChildProcess> controller = ChildProcess::Start({FAKE_CONTROLLER, socket});
    ASSERT_TRUE(controller.ok()) << controller.status();
    ASSERT_EQ(controller->ReadLine(), "ready");
    options_.controller = "unix:" + socket;
    ASSERT_TRUE(TrainOn(1, options_).ok());
    controller->CloseStdin();
    const nlohmann::json told = nlohmann::json::parse(controller->ReadLine().value());
    EXPECT_NEAR(told["registration"]["mean_rate_before"].get<double>(), known ? sum / 30 : 0, 1e-12);
    EXPECT_EQ(told["registration"]["embedding_prefix"].get<int>(), 0);
  }
}

TEST(Replica, TellsTheRatesOfItsParameterGroupsAndWhichModulesAreInThem) {
  ReplicaOptions options;
  options.model = "digitsnet";
  options.channels = 1;
  const absl::StatusOr<std::unique_ptr<Replica>> replica = Replica::Make(options, nullptr);
  ASSERT_TRUE(replica.ok()) << replica.status();
  (*replica)->SetLearningRate(0.25);
  EXPECT_EQ((*replica)->LearningRates(), std::vector<double>{0.25});
  const worker::LearningRates::ModuleGroups groups = (*replica)->ModuleGroups();
  ASSERT_EQ(groups.size(), (*replica)->modules().size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i], std::vector<int>((*replica)->modules()[i].parameters().size(), 0));
  }
}

TEST_F(TrainerTest, BadPlansAndPolicyAreTheUsersErrors) {
  WritePlans("[{\"step\": 5, \"frozen_prefix\": 5}]");
  EXPECT_THAT(std::string(TrainOn(1, options_).status().message()), HasSubstr("[BAD_PLANS]"));
  options_.plans.clear();
  options_.controller = "unix:" + Path("nobody.sock");
  options_.policy = "plasticity";
  options_.policy_json = "{\"plasticity\": {\"no_such_constant\": 1}}";
  EXPECT_EQ(TrainOn(1, options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TrainerTest, LayerModulesCanBeNamedByRegularExpressions) {
  options_.module_patterns = {"stage[12].*", "stage3.*", "head"};
  const auto run = TrainOn(1, options_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(run->modules,
              ::testing::ElementsAre("stage1.block0-stage2.block0", "stage3.block0-stage3.block1", "head"));
}

}  // namespace
}  // namespace egeria::trainer
