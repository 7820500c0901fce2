// Jobs whose workers evaluate the reference themselves: real agents and a real controller over real gRPC.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/local_trainer.h"
#include "tests/cluster/test_cluster.h"
#include "tests/support/export_all.h"

namespace egeria::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class LocalReference : public ::testing::Test {
 protected:
  controller::JobTotals Totals(int number) {
    for (const controller::JobView& job : cluster_.manager()->View().jobs) {
      if (job.summary.job_id() == TestJobId(number)) return job.totals;
    }
    return {};
  }
  std::vector<v1::ExportRecord> Export(int number) {
    return ExportAll(*cluster_.manager(), JobId(TestJobId(number))).value_or(std::vector<v1::ExportRecord>());
  }

  TestCluster cluster_;
};

TEST_F(LocalReference, FreezesModuleAfterModule) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1));
  ASSERT_TRUE(trainer.TrainUntilPlan(3));
  EXPECT_EQ(trainer.frozen_prefix(), 3);
  EXPECT_EQ(cluster_.evaluator()->counters().evaluated, 0) << "the controller evaluates nothing";
  EXPECT_EQ(cluster_.evaluator()->counters().snapshots, 0);
}

TEST_F(LocalReference, RecordsEachReadingThatItTakesAsItCame) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1));
  ASSERT_TRUE(trainer.TrainUntilPlan(1));
  std::vector<std::pair<int, double>> offered, recorded;
  for (const worker::Reading& reading : trainer.readings()) {
    offered.emplace_back(static_cast<int>(reading.module.value()), reading.plasticity);
  }
  for (const v1::ExportRecord& record : Export(1)) {
    if (!record.observation().has_plasticity()) continue;
    recorded.emplace_back(record.observation().module(), record.observation().plasticity());
    EXPECT_EQ(record.observation().learning_rate(), 0.1);
  }
  EXPECT_GE(recorded.size(), 7u) << "W + 4 readings at least lead to a freeze";
  EXPECT_THAT(offered, IsSupersetOf(recorded));
  const controller::JobTotals totals = Totals(1);
  EXPECT_EQ(totals.evaluations.at("local"), totals.readings);
  EXPECT_THAT(totals.reference_seconds, Not(Contains(Key("local")))) << "those are the worker's seconds";
  EXPECT_EQ(totals.samples_received, 0);
  EXPECT_GT(totals.snapshots_received, 0);
  EXPECT_EQ(totals.snapshot_bytes, 0);
}

TEST_F(LocalReference, TakesANewSnapshotAfterEachWindowOfReadings) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1));
  ASSERT_TRUE(trainer.TrainUntilPlan(1));
  // Before the freeze at the seventh reading or later: one to begin with, one after three, one after six.
  EXPECT_GE(trainer.snapshots(), 3);
}

TEST_F(LocalReference, UnfreezesWhenTheLearningRateDrops) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1));
  ASSERT_TRUE(trainer.TrainUntilPlan(1));
  trainer.learning_rate = 0.01;
  ASSERT_TRUE(trainer.TrainUntil([&] { return trainer.applied().value() > 1 && trainer.frozen_prefix() == 0; }));
  ASSERT_TRUE(trainer.TrainUntil([&] { return trainer.frozen_prefix() == 1; })) << "and freezes again";
}

TEST_F(LocalReference, NeedsNoLosses) {
  worker::JobDescription job = LocalJob(1);
  job.policy_json = R"({"plasticity": {"intervalSteps": 5, "window": 3, "batchSize": 2}})";
  job.losses_reported = false;
  LocalTrainer trainer(cluster_.address(), job);
  ASSERT_TRUE(trainer.TrainUntilPlan(1));
  EXPECT_GT(trainer.readings().front().step, 30) << "6 n steps of bootstrapping come first";
}

TEST_F(LocalReference, WaitsForLossesThatAreStillToCome) {
  worker::JobDescription job = LocalJob(1);
  job.policy_json = R"({"plasticity": {"intervalSteps": 1, "window": 3, "batchSize": 2}})";
  LocalTrainer trainer(cluster_.address(), job);
  ASSERT_TRUE(trainer.TrainUntil([&] { return cluster_.Summary(TestJobId(1)).step() > 100; }));
  EXPECT_TRUE(cluster_.Summary(TestJobId(1)).bootstrapping());
  EXPECT_TRUE(trainer.readings().empty());
}

TEST_F(LocalReference, KeepsItsDecisionsWhenTheControllerRestarts) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1));
  ASSERT_TRUE(trainer.TrainUntilPlan(1));
  cluster_.Restart();
  EXPECT_GE(cluster_.Summary(TestJobId(1)).decided_prefix(), 1);
  const int snapshots = trainer.snapshots();
  ASSERT_TRUE(trainer.TrainUntilPlan(3));
  EXPECT_EQ(trainer.frozen_prefix(), 3);
  EXPECT_GT(trainer.snapshots(), snapshots) << "a controller that comes back asks for a reference";
}

TEST_F(LocalReference, BadReadingsAreRefusedByNameAndJobsGoOn) {
  LocalTrainer trainer(cluster_.address(), LocalJob(1)), other(cluster_.address(), LocalJob(2));
  ASSERT_TRUE(trainer.TrainUntil([&] { return Totals(1).readings >= 1; }));
  const worker::Reading good = trainer.readings().back();
  worker::Agent& agent = trainer.agent(0);
  const auto offer = [&](auto change) {
    worker::Reading reading = good;
    reading.step += 1'000'000;
    change(reading);
    agent.Offer(reading);
  };
  const int64_t refused_before = agent.counters().uploads_refused;
  offer([](auto& r) { r.plasticity = std::numeric_limits<double>::quiet_NaN(); });
  offer([](auto& r) { r.plasticity = std::numeric_limits<double>::infinity(); });
  offer([](auto& r) { r.plasticity = -1e-9; });
  offer([](auto& r) { r.module = ModuleIndex(1); });  // not the frontmost one
  offer([](auto& r) { r.module = ModuleIndex(3); });  // the controller evaluates it
  offer([](auto& r) { r.module = ModuleIndex(4); });  // there is none
  offer([](auto& r) { r.request_version -= 1; });
  ASSERT_TRUE(other.TrainUntil([&] { return agent.counters().uploads_refused >= refused_before + 7; }));
  const auto refused = Totals(1).uploads_refused;
  EXPECT_THAT(refused, Contains(Pair("READING_NOT_FINITE", 2)));
  EXPECT_THAT(refused, Contains(Pair("READING_NEGATIVE", 1)));
  EXPECT_THAT(refused, Contains(Pair("NOT_LOCAL", 1)));
  EXPECT_THAT(refused, Contains(Pair("UNKNOWN_MODULE", 1)));
  EXPECT_GE(refused.at("STALE_REQUEST"), 2);
  for (const v1::ExportRecord& record : Export(1)) EXPECT_LT(record.observation().step(), 1'000'000);
  EXPECT_TRUE(other.TrainUntilPlan(1));
  EXPECT_TRUE(trainer.TrainUntilPlan(1));
  EXPECT_THAT(Totals(2).uploads_refused, Not(Contains(Key("READING_NOT_FINITE"))));
}

TEST_F(LocalReference, AnotherRankThatStepsInTakesItsOwnSnapshotFirst) {
  worker::AgentOptions options;
  options.controller = cluster_.address();
  worker::JobDescription job = LocalJob(1);
  auto rank0 = worker::Agent::Start(options, job);
  ASSERT_TRUE(rank0.ok());
  const auto eventually = [](auto condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    return condition();
  };
  ASSERT_TRUE(eventually([&] { return (*rank0)->snapshot().has_value(); }));
  ASSERT_TRUE((*rank0)->Offer(worker::Snapshot{ModuleIndex(0), 1, (*rank0)->snapshot()->version, {}}));
  ASSERT_TRUE(eventually([&] { return (*rank0)->sampling().has_value(); }));
  job.rank = 1;
  auto rank1 = worker::Agent::Start(options, job);
  ASSERT_TRUE(rank1.ok());
  ASSERT_TRUE(eventually([&] { return (*rank1)->counters().connected; }));
  (*rank0)->Stop(false);
  ASSERT_TRUE(eventually([&] { return (*rank1)->snapshot().has_value(); }));
  EXPECT_FALSE((*rank1)->sampling().has_value()) << "rank 0's reference went with it";
  ASSERT_TRUE((*rank1)->Offer(worker::Snapshot{ModuleIndex(0), 2, (*rank1)->snapshot()->version, {}}));
  ASSERT_TRUE(eventually([&] { return (*rank1)->sampling().has_value(); }));
  EXPECT_TRUE((*rank1)->Offer(worker::Reading{ModuleIndex(0), 3, (*rank1)->sampling()->version, 0.5}));
  EXPECT_TRUE(eventually([&] { return Totals(1).readings == 1; }));
}

}  // namespace
}  // namespace egeria::testing
