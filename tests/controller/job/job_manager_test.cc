#include "controller/job/job_manager.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "tests/controller/job/job_manager_fixture.h"
#include "tests/support/export_all.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::EmptySnapshot;
using ::egeria::testing::FakeEvaluator;
using ::egeria::testing::MakeLocal;
using ::egeria::testing::ReadingFor;
using ::egeria::testing::SampleUpload;
using ::egeria::testing::SnapshotUpload;
using ::egeria::testing::TempFolder;
using ::egeria::testing::TestJobId;
using ::egeria::testing::TestRegistration;
using ::egeria::testing::TestUpload;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(JobManagerTest, FillsInThePolicysDefaults) {
  auto job = TestRegistration(1);
  job.mutable_policy()->mutable_plasticity()->clear_batch_size();
  const auto response = manager_->registrar().Register(job);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->policy().plasticity().batch_size(), 32);
  EXPECT_EQ(response->policy().plasticity().window(), 3);
  EXPECT_EQ(response->heartbeat_interval().seconds(), 1);
}

TEST_F(JobManagerTest, RefusesAPolicyThatCannotBe) {
  auto job = TestRegistration(1);
  job.mutable_policy()->mutable_plasticity()->set_window(1);
  EXPECT_THAT(std::string(manager_->registrar().Register(job).status().message()), StartsWith("[BAD_POLICY]"));
}

TEST_F(JobManagerTest, HandsGraphsToTheEvaluatorOncePerGeneration) {
  auto job = TestRegistration(1);
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  EXPECT_EQ(evaluator_->set_job_calls(), 1);
  job.set_generation(1);
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  EXPECT_EQ(evaluator_->set_job_calls(), 2);
}

TEST_F(JobManagerTest, AnElasticRestartMayHaveMoreOrFewerRanks) {
  auto job = TestRegistration(1);
  const int ranks = job.world_size();
  Open(job);
  job.set_world_size(ranks + 1);
  EXPECT_THAT(std::string(manager_->registrar().Register(job).status().message()), StartsWith("[JOB_CONFLICT]"))
      << "in one generation";
  for (const int now : {ranks + 1, 1}) {
    job.set_generation(job.generation() + 1);
    job.set_world_size(now);
    auto last = Open(job, now - 1, 2);
    EXPECT_EQ(manager_->View().jobs[0].summary.world_size(), now);
    EXPECT_EQ(manager_->View().jobs[0].summary.connected_ranks(), 1);
  }
}

TEST_F(JobManagerTest, KnowsWhichJobsShareItsCpus) {
  auto job = TestRegistration(1);
  job.set_host("here");
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  EXPECT_TRUE(evaluator_->traits(JobId(TestJobId(1)))->shares_cpu);
  EXPECT_EQ(evaluator_->traits(JobId(TestJobId(1)))->deadline_steps, 10);
  ASSERT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok());
  EXPECT_FALSE(evaluator_->traits(JobId(TestJobId(2)))->shares_cpu) << "on another host";
  auto gpu = TestRegistration(3);
  gpu.set_host("here");
  gpu.set_device_type("cuda");
  ASSERT_TRUE(manager_->registrar().Register(gpu).ok());
  EXPECT_FALSE(evaluator_->traits(JobId(TestJobId(3)))->shares_cpu);
}

TEST_F(JobManagerTest, LimitsUnfinishedJobs) {
  options_.max_jobs = 2;
  Restart();
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok());
  EXPECT_THAT(std::string(manager_->registrar().Register(TestRegistration(3)).status().message()),
              StartsWith("[TOO_MANY_JOBS]"));
  EXPECT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok()) << "known already";
  v1::Heartbeat finished;
  finished.set_finished(true);
  ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, finished).ok());
  EXPECT_TRUE(manager_->registrar().Register(TestRegistration(3)).ok());
}

TEST_F(JobManagerTest, AsksOneRankForSnapshotsAndSamples) {
  const auto job = TestRegistration(1);
  auto rank1 = Open(job, 1), rank0 = Open(job, 0);
  EXPECT_TRUE(manager_->sessions().DirectiveFor(rank0->id)->has_snapshot());
  EXPECT_FALSE(manager_->sessions().DirectiveFor(rank1->id)->has_snapshot());
  manager_->sessions().Close(rank0->id);
  EXPECT_GT(rank1->pushes, 0);
  EXPECT_TRUE(manager_->sessions().DirectiveFor(rank1->id)->has_snapshot()) << "the next one steps in";
  const auto stale = SnapshotUpload(1, manager_->sessions().DirectiveFor(rank1->id)->snapshot(), 0, 10);
  auto back = Open(job, 0);
  EXPECT_THAT(std::string(Upload(*rank1, stale).message()), StartsWith("[STALE_REQUEST]"));
}

TEST_F(JobManagerTest, RefreshesTheReferenceAfterEachWindowOfReadings) {
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(Serve(*stream, 5).ok());  // the snapshot
  for (int64_t step : {10, 20}) ASSERT_TRUE(Serve(*stream, step).ok());
  EXPECT_FALSE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot());
  ASSERT_TRUE(Serve(*stream, 30).ok());
  EXPECT_TRUE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot());
  EXPECT_TRUE(manager_->sessions().DirectiveFor(stream->id)->has_sampling());
}

TEST_F(JobManagerTest, GivesTheNextModuleAFreshReference) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  const v1::Directive directive = *manager_->sessions().DirectiveFor(stream->id);
  ASSERT_TRUE(directive.has_snapshot());
  EXPECT_EQ(directive.snapshot().module(), 1);
  EXPECT_FALSE(directive.has_sampling());
}

TEST_F(JobManagerTest, ScopePrefixAsksForEveryModuleUpToTheFrontmost) {
  options_.scope = ReferenceScope::kPrefix;
  Restart();
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  EXPECT_EQ(manager_->sessions().DirectiveFor(stream->id)->snapshot().first_module(), 0);
  EXPECT_EQ(manager_->sessions().DirectiveFor(stream->id)->snapshot().module(), 1);
  TrainUntilPlan(*stream, &step, PlanId(2));
}

TEST_F(JobManagerTest, AReadingCarriesTheLearningRateInForceAndNeverGoesBack) {
  auto stream = Open(TestRegistration(1));
  Beat(*stream, 100, 0.1);
  ASSERT_TRUE(Serve(*stream, 5).ok());
  ASSERT_TRUE(Serve(*stream, 50).ok());  // evaluated late
  const auto records = testing::ExportAll(*manager_, JobId(TestJobId(1)));
  ASSERT_TRUE(records.ok());
  const v1::Observation& reading = records->back().observation();
  EXPECT_EQ(reading.step(), 100);
  EXPECT_EQ(reading.learning_rate(), 0.1);
}

TEST_F(JobManagerTest, TakesReadingsOfALocalReferenceAsTheEvaluators) {
  auto job = TestRegistration(1);
  MakeLocal(&job);
  const auto response = manager_->registrar().Register(job);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->module_errors_size(), 0) << "nothing is missing";
  auto stream = Open(job);
  Beat(*stream, 4, 0.1);
  const auto read = [&](int64_t step, double plasticity) {
    return manager_->uploads().TakeReading(
        stream->id, ReadingFor(++upload_, manager_->sessions().DirectiveFor(stream->id)->sampling(), step, plasticity));
  };
  EXPECT_FALSE(manager_->sessions().DirectiveFor(stream->id)->has_sampling());
  EXPECT_THAT(std::string(read(4, 0.5).message()), StartsWith("[STALE_REQUEST]")) << "no snapshot yet";
  ASSERT_TRUE(
      Upload(*stream, EmptySnapshot(++upload_, manager_->sessions().DirectiveFor(stream->id)->snapshot(), 5)).ok());
  EXPECT_TRUE(read(10, 0.5).ok());
  EXPECT_THAT(std::string(read(10, 0.5).message()), StartsWith("[STALE_REQUEST]")) << "once a step";
  EXPECT_THAT(std::string(read(5, 0.5).message()), StartsWith("[STALE_REQUEST]")) << "not before the reference";
  EXPECT_TRUE(read(20, 0).ok()) << "0 is a reading";
  EXPECT_TRUE(read(30, 0.2).ok());
  EXPECT_TRUE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot()) << "a window is over";
  const auto records = testing::ExportAll(*manager_, JobId(TestJobId(1)));
  EXPECT_EQ(records->back().observation().step(), 30);
  EXPECT_EQ(records->back().observation().plasticity(), 0.2);
  EXPECT_EQ(records->back().observation().learning_rate(), 0.1);
  EXPECT_EQ(manager_->View().jobs[0].totals.evaluations.at("local"), 3);
  EXPECT_EQ(evaluator_->counters().snapshots, 0);
}

TEST_F(JobManagerTest, RefusesSamplesAndWeightsOfAModuleThatItsWorkerEvaluates) {
  auto job = TestRegistration(1);
  MakeLocal(&job);
  auto stream = Open(job);
  const v1::SnapshotRequest wanted = manager_->sessions().DirectiveFor(stream->id)->snapshot();
  EXPECT_THAT(std::string(Upload(*stream, SnapshotUpload(1, wanted, 0, 5)).message()), StartsWith("[LOCAL_REFERENCE]"));
  ASSERT_TRUE(Upload(*stream, EmptySnapshot(2, wanted, 5)).ok());
  const v1::SamplingRequest request = manager_->sessions().DirectiveFor(stream->id)->sampling();
  EXPECT_THAT(std::string(Upload(*stream, SampleUpload(3, request, 10)).message()), StartsWith("[LOCAL_REFERENCE]"));
}

TEST_F(JobManagerTest, RefusesReadingsByName) {
  max_backlog_bytes_ = 0;
  Restart();
  auto job = TestRegistration(1);
  MakeLocal(&job);
  auto stream = Open(job, 0), second = Open(job, 1);
  ASSERT_TRUE(Upload(*stream, EmptySnapshot(1, manager_->sessions().DirectiveFor(stream->id)->snapshot(), 5)).ok());
  const v1::Reading good = ReadingFor(2, manager_->sessions().DirectiveFor(stream->id)->sampling(), 10, 0.5);
  const auto why = [&](const Stream& from, auto change) {
    v1::Reading reading = good;
    change(reading);
    return std::string(manager_->uploads().TakeReading(from.id, reading).message());
  };
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_plasticity(std::nan("")); }), StartsWith("[READING_NOT_FINITE]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_plasticity(-HUGE_VAL); }), StartsWith("[READING_NOT_FINITE]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_plasticity(-0.1); }), StartsWith("[READING_NEGATIVE]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_module(-1); }), StartsWith("[UNKNOWN_MODULE]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_module(3); }), StartsWith("[UNKNOWN_MODULE]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_module(2); }), StartsWith("[NOT_LOCAL]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_module(1); }), StartsWith("[STALE_REQUEST]"));
  EXPECT_THAT(why(*stream, [](auto& r) { r.set_request_version(1); }), StartsWith("[STALE_REQUEST]"));
  EXPECT_THAT(why(*second, [](auto&) {}), StartsWith("[STALE_REQUEST]")) << "rank 0 samples";
  disk_.failing = true;
  manager_->registrar().Register(TestRegistration(3)).status().IgnoreError();  // takes the room that there is
  EXPECT_THAT(why(*stream, [](auto&) {}), StartsWith("[JOURNAL]"));
  disk_.failing = false;
  const auto refused = manager_->View().jobs[0].totals.uploads_refused;
  EXPECT_EQ(refused.at("READING_NOT_FINITE"), 2);
  EXPECT_EQ(refused.at("STALE_REQUEST"), 3);
  EXPECT_EQ(refused.at("JOURNAL"), 1);
  EXPECT_EQ(Summary(*stream).readings(), 0);
  EXPECT_EQ(why(*stream, [](auto& r) { r.set_step(20); }), "");
  job.set_generation(1);
  Open(job, 0, 2);
  EXPECT_EQ(manager_->uploads().TakeReading(stream->id, good).code(), absl::StatusCode::kAborted)
      << "an older generation";
}

TEST_F(JobManagerTest, AGenerationMayEvaluateElsewhereThanTheOneBefore) {
  auto job = TestRegistration(1);
  MakeLocal(&job);
  Open(job);
  job = TestRegistration(1);
  job.set_generation(1);
  auto stream = Open(job, 0, 2);
  ASSERT_TRUE(Serve(*stream, 5).ok()) << "the snapshot, with its weights";
  ASSERT_TRUE(Serve(*stream, 10).ok());
  EXPECT_EQ(Summary(*stream).readings(), 1);
  EXPECT_EQ(evaluator_->counters().evaluated, 1);
}

TEST_F(JobManagerTest, ScopePrefixDoesNotReachAcrossALocalReference) {
  options_.scope = ReferenceScope::kPrefix;
  Restart();
  auto job = TestRegistration(1, 4);
  MakeLocal(&job);
  *job.mutable_modules(2) = TestRegistration(1, 4).modules(2);
  auto stream = Open(job);
  EXPECT_EQ(manager_->sessions().DirectiveFor(stream->id)->snapshot().module(), 0);
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", false).ok());
  EXPECT_EQ(manager_->sessions().DirectiveFor(stream->id)->snapshot().first_module(), 1)
      << "a worker evaluates one module";
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 2, "", false).ok());
  EXPECT_FALSE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot());
  EXPECT_THAT(Summary(*stream).blocked(), AllOf(HasSubstr("module 0"), HasSubstr("[LOCAL_REFERENCE]")));
}

TEST_F(JobManagerTest, WithoutLossesAsksForASnapshotAfterSixIntervals) {
  auto job = TestRegistration(1);
  job.mutable_policy()->mutable_plasticity()->set_bootstrap(true);
  job.set_losses_unreported(true);
  auto stream = Open(job);
  EXPECT_FALSE(Beat(*stream, 59).has_snapshot());
  EXPECT_TRUE(Summary(*stream).bootstrapping());
  EXPECT_TRUE(Beat(*stream, 61).has_snapshot());
  EXPECT_FALSE(Summary(*stream).bootstrapping());
  const std::string before = manager_->DebugString(JobId(TestJobId(1)));
  Restart();
  EXPECT_EQ(manager_->DebugString(JobId(TestJobId(1))), before);
  EXPECT_FALSE(Summary(*stream).bootstrapping());
}

TEST_F(JobManagerTest, UnfreezesAtTheDropOfTheLearningRate) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  const v1::Directive directive = Beat(*stream, step + 1, 0.01);
  ASSERT_EQ(directive.plans_size(), 2);
  EXPECT_EQ(directive.plans(1).frozen_prefix(), 0);
  EXPECT_EQ(directive.snapshot().module(), 0);
}

TEST_F(JobManagerTest, TellsTheRankWhenTheReferenceFails) {
  script_ = [](const JobId&, int, int64_t) -> absl::StatusOr<double> {
    return absl::InternalError("[REFERENCE_FAILED] oh");
  };
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(Serve(*stream, 5).ok());
  ASSERT_TRUE(Serve(*stream, 10).ok());
  ASSERT_EQ(stream->refused.size(), 1u);
  EXPECT_EQ(stream->refused[0].first, upload_);
  EXPECT_THAT(stream->refused[0].second, StartsWith("[REFERENCE_FAILED]"));
  EXPECT_EQ(Summary(*stream).readings(), 0);
}

TEST_F(JobManagerTest, AsksForNothingMoreOfAModuleWhoseGraphIsRefused) {
  script_ = [](const JobId&, int, int64_t) -> absl::StatusOr<double> {
    return absl::DeadlineExceededError("[REFERENCE_TOO_SLOW] oh");
  };
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(Serve(*stream, 5).ok());
  ASSERT_TRUE(Serve(*stream, 10).ok());
  const v1::Directive directive = *manager_->sessions().DirectiveFor(stream->id);
  EXPECT_FALSE(directive.has_sampling());
  EXPECT_FALSE(directive.has_snapshot());
  EXPECT_THAT(Summary(*stream).blocked(), HasSubstr("[REFERENCE_TOO_SLOW]"));
  EXPECT_EQ(manager_->View().jobs.at(0).unusable.begin()->second, "REFERENCE_TOO_SLOW");
}

TEST_F(JobManagerTest, AReadingThatIsNotFiniteDoesNotCount) {
  script_ = [](const JobId&, int, int64_t) { return absl::StatusOr<double>(std::nan("")); };
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(Serve(*stream, 5).ok());
  ASSERT_TRUE(Serve(*stream, 10).ok());
  EXPECT_EQ(stream->refused.size(), 1u);
  EXPECT_EQ(Summary(*stream).readings(), 0);
}

TEST_F(JobManagerTest, RefusesSamplesOfAnotherBatchSize) {
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(Serve(*stream, 5).ok());
  v1::SamplingRequest request = manager_->sessions().DirectiveFor(stream->id)->sampling();
  request.set_batch_size(3);
  EXPECT_THAT(std::string(Upload(*stream, SampleUpload(9, request, 10)).message()), StartsWith("[BAD_SHAPE]"));
}

TEST_F(JobManagerTest, AnUploadIsJudgedAgainWhenItIsComplete) {
  const auto stream = Open(TestRegistration(1));
  const auto snapshot = SnapshotUpload(1, manager_->sessions().DirectiveFor(stream->id)->snapshot(), 0, 0);
  ASSERT_TRUE(manager_->uploads().Check(stream->id, snapshot.begin).ok());
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", /*force=*/true).ok());
  const absl::Status late = manager_->uploads().Finish(stream->id, snapshot.begin, TensorsOf(snapshot));
  EXPECT_THAT(std::string(late.message()), StartsWith("[STALE_REQUEST]"));
  EXPECT_EQ(manager_->View().jobs[0].totals.uploads_refused.at("STALE_REQUEST"), 1);
  EXPECT_EQ(manager_->View().jobs[0].totals.snapshots_received, 0);
}

TEST_F(JobManagerTest, ACompleteUploadMayNameNoModuleOfTheJob) {
  const auto stream = Open(TestRegistration(1));
  v1::UploadBegin begin;  // it has no bytes, so that it is complete as it begins
  begin.set_upload_id(1);
  begin.mutable_snapshot()->set_module(99);
  EXPECT_THAT(std::string(manager_->uploads().Finish(stream->id, begin, {}).message()), StartsWith("[UNKNOWN_MODULE]"));
}

TEST_F(JobManagerTest, AsksForTheOutputItselfWhereItsNormIsTheMetric) {
  auto job = TestRegistration(1);
  const v1::PlasticityPolicy constants = job.policy().plasticity();
  *job.mutable_policy()->mutable_actnorm() = constants;
  auto stream = Open(job);
  ASSERT_TRUE(Serve(*stream, 5).ok());  // the snapshot
  const v1::SamplingRequest request = manager_->sessions().DirectiveFor(stream->id)->sampling();
  EXPECT_EQ(request.metric(), v1::ACTIVATION_METRIC_NORM);
  EXPECT_THAT(std::string(Upload(*stream, SampleUpload(9, request, 10)).message()), StartsWith("[BAD_SHAPE]"))
      << "a Gram matrix";
  TestUpload upload = SampleUpload(10, request, 10);
  upload.begin.mutable_sample()->set_metric(v1::ACTIVATION_METRIC_NORM);
  EXPECT_TRUE(Upload(*stream, upload).ok());
}

TEST_F(JobManagerTest, AsksAgainForASnapshotThatWasRefused) {
  auto stream = Open(TestRegistration(1));
  const v1::SnapshotRequest first = manager_->sessions().DirectiveFor(stream->id)->snapshot();
  TestUpload empty = SnapshotUpload(1, first, 0, 5);
  empty.begin.clear_tensors();
  EXPECT_THAT(std::string(Upload(*stream, empty).message()), StartsWith("[MISSING_WEIGHT]"));
  EXPECT_FALSE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot());
  now_ += absl::Seconds(10);
  EXPECT_GT(Beat(*stream, 6).snapshot().version(), first.version());
}

TEST_F(JobManagerTest, PauseStopsDecidingAndResumeGoesOn) {
  auto stream = Open(TestRegistration(1));
  ASSERT_TRUE(manager_->operators().SetPaused(JobId(TestJobId(1)), true).ok());
  for (int64_t step = 10; step < 500; step += 10) ASSERT_TRUE(Serve(*stream, step).ok());
  EXPECT_EQ(Summary(*stream).plan_id(), 0);
  EXPECT_GT(Summary(*stream).readings(), 20);
  EXPECT_TRUE(Summary(*stream).paused());
  ASSERT_TRUE(manager_->operators().SetPaused(JobId(TestJobId(1)), false).ok());
  int64_t step = 500;
  script_ = [](const JobId&, int, int64_t s) -> absl::StatusOr<double> {
    return 0.001 + std::exp(-static_cast<double>(s - 500) / 20);
  };
  TrainUntilPlan(*stream, &step, PlanId(1));
}

TEST_F(JobManagerTest, AnOperatorsPrefixIsAPlanOnce) {
  auto stream = Open(TestRegistration(1));
  const auto plan = manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", false);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->plan, PlanId(1));
  EXPECT_GT(stream->pushes, 0);
  EXPECT_EQ(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", false)->plan, PlanId(1))
      << "it is so already";
  EXPECT_EQ(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 0, "", false)->plan, PlanId(2));
}

TEST_F(JobManagerTest, SummarisesWhatTheRanksHaveApplied) {
  const auto job = TestRegistration(1);  // 100 + 200 + 300 parameters
  auto rank0 = Open(job, 0), rank1 = Open(job, 1);
  Beat(*rank0, 10, 0.1, 2);
  Beat(*rank1, 9, 0.1, 1);
  const v1::JobSummary summary = Summary(*rank0);
  EXPECT_EQ(summary.applied_prefix(), 1);
  EXPECT_NEAR(summary.frozen_parameter_share(), 100.0 / 600, 1e-12);
  EXPECT_EQ(summary.step(), 10);
  EXPECT_EQ(summary.connected_ranks(), 2);
  EXPECT_EQ(summary.phase(), v1::JOB_PHASE_RUNNING);
  manager_->sessions().Close(rank0->id);
  manager_->sessions().Close(rank1->id);
  EXPECT_EQ(Summary(*rank0).phase(), v1::JOB_PHASE_SILENT);
}

TEST_F(JobManagerTest, OfFinishedJobsTheNewestAreKept) {
  options_.max_jobs = 2;
  Restart();
  for (const int number : {1, 2, 3}) {
    auto stream = Open(TestRegistration(number));
    v1::Heartbeat finished;
    finished.set_finished(true);
    ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, finished).ok());
    manager_->sessions().Close(stream->id);
    now_ += absl::Seconds(1);
  }
  manager_->Maintain();
  EXPECT_EQ(Summary(TestJobId(1)).job_id(), "");
  EXPECT_EQ(Summary(TestJobId(2)).job_id(), TestJobId(2));
  EXPECT_EQ(Summary(TestJobId(3)).job_id(), TestJobId(3));
}

TEST_F(JobManagerTest, TheReferenceOfAJobThatIsGoneGoesToo) {
  auto stream = Open(TestRegistration(1));
  Beat(*stream, 0);
  ASSERT_TRUE(Serve(*stream, 1).ok());
  manager_->sessions().Close(stream->id);
  manager_->Maintain();
  EXPECT_TRUE(evaluator_->traits(JobId(TestJobId(1))).has_value());
  now_ += absl::Minutes(11);
  manager_->Maintain();
  EXPECT_FALSE(evaluator_->traits(JobId(TestJobId(1))).has_value());
  EXPECT_EQ(Summary(*stream).job_id(), TestJobId(1)) << "the job itself stays";
  auto again = Open(TestRegistration(1));
  EXPECT_TRUE(manager_->sessions().DirectiveFor(again->id)->has_snapshot());
}

TEST_F(JobManagerTest, ARestartMayHaveOtherSettings) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  auto next = TestRegistration(1);
  next.set_generation(1);
  next.set_step(step);
  next.set_frozen_prefix(1);
  next.set_applied_plan(1);
  next.set_total_steps(9'000);
  next.mutable_policy()->mutable_none();
  next.set_mode(v1::MODE_OBSERVE);
  for (const bool restarted : {false, true}) {
    if (restarted) Restart();
    const auto response = manager_->registrar().Register(next);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_TRUE(response->policy().has_none());
    EXPECT_EQ(Summary(TestJobId(1)).mode(), v1::MODE_OBSERVE);
    EXPECT_EQ(Summary(TestJobId(1)).decided_prefix(), 1) << "as the checkpoint has it";
  }
  next.set_generation(2);
  next.set_mode(v1::MODE_ACT);
  ASSERT_TRUE(manager_->registrar().Register(next).ok());
  EXPECT_EQ(Summary(TestJobId(1)).mode(), v1::MODE_OBSERVE) << "perhaps an operator's";
}

TEST_F(JobManagerTest, AChangeOfTheRateInAPauseIsToldAfterIt) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  TrainUntilPlan(*stream, &step, PlanId(2));
  ASSERT_TRUE(manager_->operators().SetPaused(JobId(TestJobId(1)), true).ok());
  Beat(*stream, step + 10, 0.01, 2);
  EXPECT_EQ(Summary(*stream).plan_id(), 2);
  ASSERT_TRUE(manager_->operators().SetPaused(JobId(TestJobId(1)), false).ok());
  Beat(*stream, step + 20, 0.01, 2);
  EXPECT_EQ(Summary(*stream).plan_id(), 3);
  EXPECT_EQ(Summary(*stream).decided_prefix(), 0);
}

TEST_F(JobManagerTest, RefusesStepsThatNoTrainingHas) {
  auto job = TestRegistration(1);
  job.set_step(kMaxSteps + 1);
  EXPECT_THAT(std::string(manager_->registrar().Register(job).status().message()), StartsWith("[BAD_REGISTRATION]"));
  auto stream = Open(TestRegistration(1));
  v1::Heartbeat heartbeat;
  heartbeat.set_step(kMaxSteps + 1);
  EXPECT_THAT(std::string(manager_->sessions().Heartbeat(stream->id, heartbeat).message()),
              StartsWith("[BAD_MESSAGE]"));
}

TEST_F(JobManagerTest, ARestartFromBeforeItsDecisionFreezesForFineTuningAgain) {
  auto job = TestRegistration(1);
  job.mutable_policy()->mutable_finetune()->set_frozen_prefix(1);
  auto stream = Open(job);
  Beat(*stream, 0);
  EXPECT_EQ(Summary(*stream).plan_id(), 1);
  job.set_generation(1);
  auto again = Open(job, 0, 2);
  Beat(*again, 0);
  EXPECT_EQ(Summary(*again).decided_prefix(), 1);
  EXPECT_EQ(manager_->sessions().DirectiveFor(again->id)->plans_size(), 1);
}

TEST_F(JobManagerTest, AFinishedJobIsLetGoAndKeptForAWhile) {
  auto stream = Open(TestRegistration(1));
  v1::Heartbeat heartbeat;
  heartbeat.set_step(90);
  heartbeat.set_finished(true);
  ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, heartbeat).ok());
  ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, heartbeat).ok());
  EXPECT_EQ(Summary(*stream).phase(), v1::JOB_PHASE_FINISHED);
  EXPECT_FALSE(evaluator_->traits(JobId(TestJobId(1))).has_value());
  EXPECT_FALSE(manager_->sessions().DirectiveFor(stream->id)->has_snapshot());
  EXPECT_THAT(std::string(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", false).status().message()),
              StartsWith("[JOB_FINISHED]"));
  manager_->sessions().Close(stream->id);
  now_ += absl::Hours(24 * 29);
  manager_->Maintain();
  Restart();
  EXPECT_EQ(Summary(*stream).phase(), v1::JOB_PHASE_FINISHED);
  now_ += absl::Hours(24 * 2);
  manager_->Maintain();
  EXPECT_EQ(Summary(*stream).job_id(), "");
  Restart();
  EXPECT_EQ(Summary(*stream).job_id(), "");
}

TEST_F(JobManagerTest, ASilentJobIsForgottenAfterItsRetentionOnly) {
  auto stream = Open(TestRegistration(1));
  now_ += absl::Hours(24 * 100);
  manager_->Maintain();
  EXPECT_EQ(Summary(*stream).job_id(), TestJobId(1)) << "its stream is open";
  manager_->sessions().Close(stream->id);
  manager_->Maintain();
  EXPECT_EQ(Summary(*stream).job_id(), TestJobId(1));
  now_ += absl::Hours(24 * 8);
  manager_->Maintain();
  EXPECT_EQ(Summary(*stream).job_id(), "");
}

TEST_F(JobManagerTest, AClockThatLeapsDeletesNoJobAndStopsNothing) {
  auto silent = TestRegistration(2);
  ASSERT_TRUE(manager_->registrar().Register(silent).ok());
  auto stream = Open(TestRegistration(1));
  for (const absl::Duration leap : {absl::Hours(24 * 3'000), -absl::Hours(24 * 9'000)}) {
    wall_ += leap;
    now_ += absl::Minutes(1);
    Beat(*stream, 10);
    manager_->Maintain();
    EXPECT_EQ(manager_->ListJobs().jobs_size(), 2) << leap;
    ASSERT_TRUE(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), leap > absl::ZeroDuration(), "", true).ok());
    Restart();
    manager_->Maintain();
    EXPECT_EQ(manager_->ListJobs().jobs_size(), 2) << leap;
    stream = Open(TestRegistration(1), 0, 2);
  }
  EXPECT_EQ(manager_->View().jobs[0].last_activity, now_);
}

TEST_F(JobManagerTest, NumbersTheStartsOfAJob) {
  auto first = TestRegistration(1), second = TestRegistration(1), third = TestRegistration(1);
  first.set_start_id(11);
  second.set_start_id(22);
  third.set_start_id(33);
  third.set_generation(7);
  const auto generation = [this](const v1::RegisterJobRequest& request) {
    const auto response = manager_->registrar().Register(request);
    return response.ok() ? response->generation() : -1;
  };
  EXPECT_EQ(generation(first), 0);
  EXPECT_EQ(generation(first), 0) << "another rank of the same start";
  EXPECT_EQ(generation(second), 1);
  EXPECT_EQ(generation(second), 1);
  EXPECT_THAT(std::string(manager_->registrar().Register(first).status().message()), StartsWith("[STALE_GENERATION]"));
  Restart();
  EXPECT_EQ(generation(second), 1);
  EXPECT_EQ(generation(first), -1) << "the journal knows the starts";
  EXPECT_EQ(generation(third), 7) << "it has had this number from another controller";
  first.set_job_id(TestJobId(2));
  EXPECT_EQ(generation(first), 0) << "a start of another job";
}

TEST_F(JobManagerTest, AnOlderJournalDoesNotServeAJobThatANewerOneHas) {
  auto job = TestRegistration(1);
  auto first = manager_->registrar().Register(job);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->journal_epoch(), 1);
  job.set_journal_epoch(1);
  EXPECT_EQ(manager_->registrar().Register(job)->journal_epoch(), 1);
  manager_.reset();
  // The journal is lost, a new one takes the job, and then the old one comes back.
  std::filesystem::rename(folder_ / "journal", folder_ / "old");
  Start();
  EXPECT_EQ(manager_->registrar().Register(job)->journal_epoch(), 2);
  job.set_journal_epoch(2);
  manager_.reset();
  std::filesystem::remove_all(folder_ / "journal");
  std::filesystem::rename(folder_ / "old", folder_ / "journal");
  Start();
  EXPECT_THAT(std::string(manager_->registrar().Register(job).status().message()), StartsWith("[STALE_JOURNAL]"));
}

TEST_F(JobManagerTest, KeepsNothingOfARegistrationThatItHasNoUseFor) {
  auto job = TestRegistration(1);
  const size_t before = job.ByteSizeLong();
  job.GetReflection()->MutableUnknownFields(&job)->AddLengthDelimited(5'000, std::string(3'000'000, 'x'));
  auto* module = job.mutable_modules(0);
  module->clear_graph();
  module->set_graph_error(std::string(3'000'000, 'y'));
  module->GetReflection()->MutableUnknownFields(module)->AddLengthDelimited(9, std::string(3'000'000, 'z'));
  const auto response = manager_->registrar().Register(job);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_LT(response->ByteSizeLong(), 10'000u);
  EXPECT_LT(manager_->DebugString(JobId(TestJobId(1))).size(), 10 * before + 10'000);
}

TEST_F(JobManagerTest, RefusesRegistrationsAndGraphsThatAreTooLarge) {
  auto job = TestRegistration(1);
  job.mutable_policy()->mutable_plasticity()->mutable_unfreeze_steps()->Resize(5'000, 1);
  EXPECT_THAT(std::string(manager_->registrar().Register(job).status().message()), StartsWith("[BAD_REGISTRATION]"));
  options_.registration.max_bytes = 100;
  options_.registration.max_graph_bytes = 0;
  Restart();
  EXPECT_THAT(std::string(manager_->registrar().Register(TestRegistration(1)).status().message()),
              StartsWith("[REGISTRATION_TOO_LARGE]"));
  options_.registration.max_bytes = 1 << 20;
  Restart();
  const auto response = manager_->registrar().Register(TestRegistration(1));
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_GT(response->module_errors_size(), 0);
  EXPECT_THAT(response->module_errors(0).reason(), StartsWith("[GRAPHS_TOO_LARGE]"));
}

TEST_F(JobManagerTest, AJobThatHasUsedUpItsPartOfTheJournalIsToldSo) {
  options_.max_bytes_per_job = 8'000;
  Restart();
  auto stream = Open(TestRegistration(1));
  for (int64_t step = 1; step <= 1'000; ++step) Beat(*stream, step, step % 2 == 0 ? 0.1 : 0.05);
  const JobId id(TestJobId(1));
  const size_t records = testing::ExportAll(*manager_, id)->size();
  EXPECT_GT(records, 50u);
  EXPECT_LT(records, 500u) << "it takes no more observations";
  absl::Status status;
  for (int i = 0; i < 500 && status.ok(); ++i) status = manager_->operators().SetPaused(id, i % 2 == 0).status();
  EXPECT_THAT(std::string(status.message()), StartsWith("[JOB_TOO_LARGE]"));
  EXPECT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok()) << "others feel nothing";
}

TEST_F(JobManagerTest, ALongHistoryIsExportedPieceByPiece) {
  auto job = TestRegistration(1);
  auto stream = Open(job);
  for (int64_t step = 1; step <= 600; ++step) Beat(*stream, step, step % 2 == 0 ? 0.1 : 0.05);
  const JobId id(TestJobId(1));
  ExportCursor cursor;
  const auto first = manager_->ExportJob(id, &cursor);
  ASSERT_TRUE(first.ok());
  EXPECT_LE(first->size(), 256u);
  EXPECT_TRUE((*first)[0].has_header());
  EXPECT_GT(testing::ExportAll(*manager_, id)->size(), 600u);
  job.set_generation(1);
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  EXPECT_THAT(std::string(manager_->ExportJob(id, &cursor).status().message()), StartsWith("[HISTORY_CHANGED]"));
}

TEST_F(JobManagerTest, TakesNoMoreObservationsThanAllowed) {
  options_.max_observations_per_job = 5;
  Restart();
  auto stream = Open(TestRegistration(1));
  for (int64_t step = 5; step < 200; step += 10) ASSERT_TRUE(Serve(*stream, step).ok());
  EXPECT_EQ(Summary(*stream).readings(), 5);
}

TEST_F(JobManagerTest, AJobWithADamagedJournalGoesOnFromWhatIsReadable) {
  auto stream = Open(TestRegistration(1));
  auto other = Open(TestRegistration(2));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  manager_.reset();
  {
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), folder_ / "journal", &opened).ok());
    std::unique_ptr<rocksdb::DB> db(opened);
    ASSERT_TRUE(db->Put({}, Journal::KeyForTest(JobId(TestJobId(1)), 4), "garbage").ok());
  }
  Start();
  EXPECT_EQ(manager_->View().journal.damaged_jobs, 1);
  EXPECT_EQ(Summary(TestJobId(2)).job_id(), TestJobId(2));
  EXPECT_EQ(Summary(TestJobId(1)).decided_prefix(), 0) << "the decision was behind the damage";
  auto job = TestRegistration(1);
  job.set_frozen_prefix(1);
  job.set_applied_plan(1);
  job.set_step(step);
  auto again = Open(job);
  EXPECT_EQ(Summary(TestJobId(1)).decided_prefix(), 1) << "the worker's word is what is left";
  TrainUntilPlan(*again, &step, PlanId(2));
}

TEST_F(JobManagerTest, RecoversEveryJobExactly) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  ASSERT_TRUE(manager_->operators().SetPaused(JobId(TestJobId(1)), true).ok());
  ASSERT_TRUE(manager_->operators().SetMode(JobId(TestJobId(1)), v1::MODE_OBSERVE).ok());
  Beat(*stream, step + 3, 0.05);
  const std::string before = manager_->DebugString(JobId(TestJobId(1)));
  const auto totals = manager_->View().jobs[0].totals;
  Restart();
  EXPECT_EQ(manager_->DebugString(JobId(TestJobId(1))), before);
  EXPECT_EQ(manager_->View().jobs[0].totals.readings, totals.readings);
  EXPECT_EQ(manager_->View().jobs[0].totals.decisions, totals.decisions);
}

TEST_F(JobManagerTest, ChangesNothingThatTheJournalDidNotTake) {
  max_backlog_bytes_ = 0;
  Restart();
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  const JobId id(TestJobId(1));
  const std::string before = manager_->DebugString(id);
  disk_.failing = true;
  manager_->registrar().Register(TestRegistration(3)).status().IgnoreError();  // takes the room that there is
  EXPECT_THAT(std::string(manager_->operators().SetFrozenPrefix(id, 2, "", false).status().message()),
              StartsWith("[JOURNAL]"));
  EXPECT_THAT(std::string(manager_->operators().SetPaused(id, true).status().message()), StartsWith("[JOURNAL]"));
  EXPECT_THAT(std::string(manager_->operators().SetMode(id, v1::MODE_OBSERVE).status().message()),
              StartsWith("[JOURNAL]"));
  EXPECT_THAT(std::string(manager_->registrar().Register(TestRegistration(2)).status().message()),
              StartsWith("[JOURNAL]"));
  Beat(*stream, step + 1, 0.01);  // the drop that unfreezes all
  EXPECT_EQ(manager_->DebugString(id), before);
  EXPECT_GT(manager_->View().journal.errors, 0);
  disk_.failing = false;
  EXPECT_EQ(Beat(*stream, step + 2, 0.01).plans_size(), 2) << "the drop is not lost";
  EXPECT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok());
  const std::string after = manager_->DebugString(id);
  Restart();
  EXPECT_EQ(manager_->DebugString(id), after);
}

TEST_F(JobManagerTest, DecidesInMemoryWhileTheDiskIsBrokenAndJournalsItLater) {
  auto stream = Open(TestRegistration(1));
  int64_t step = 0;
  TrainUntilPlan(*stream, &step, PlanId(1));
  const JobId id(TestJobId(1));
  disk_.failing = true;
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(id, 2, "", false).ok());
  EXPECT_EQ(Beat(*stream, step + 1, 0.01).plans_size(), 3) << "the drop unfreezes all, and nothing waits for the disk";
  ASSERT_TRUE(manager_->registrar().Register(TestRegistration(2)).ok());
  EXPECT_GT(manager_->View().journal.backlog_bytes, 0);
  EXPECT_FALSE(manager_->Tend().ok());
  disk_.failing = false;
  EXPECT_TRUE(manager_->Tend().ok());
  const std::string after = manager_->DebugString(id);
  Restart();
  EXPECT_EQ(manager_->DebugString(id), after);
  EXPECT_EQ(Summary(TestJobId(2)).job_id(), TestJobId(2));
}

TEST_F(JobManagerTest, StopClosesEverySessionAndTheEvaluator) {
  auto stream = Open(TestRegistration(1));
  manager_->Stop();
  manager_->Stop();
  ASSERT_TRUE(stream->closed.has_value());
  EXPECT_EQ(stream->closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(evaluator_->stopped());
  EXPECT_EQ(manager_->registrar().Register(TestRegistration(2)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(JobManagerTest, WorkersThatKnowMoreThanTheJournalAreBelieved) {
  auto job = TestRegistration(1);
  auto stream = Open(job);
  job.set_applied_plan(5);
  job.set_frozen_prefix(2);
  job.set_step(300);
  const auto response = manager_->registrar().Register(job);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->plan_id(), 5);
  EXPECT_EQ(response->frozen_prefix(), 2);
}

TEST_F(JobManagerTest, IdsGoOnBehindAPlanThatARankHasReceivedAndTheJournalLost) {
  auto job = TestRegistration(1);
  auto stream = Open(job);
  job.set_received_plan(1);
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(JobId(TestJobId(1)), 1, "", /*force=*/true).ok());
  const v1::Directive directive = *manager_->sessions().DirectiveFor(stream->id);
  EXPECT_EQ(directive.base_plan(), 1);
  ASSERT_EQ(directive.plans_size(), 1);
  EXPECT_EQ(directive.plans(0).plan_id(), 2);
}

}  // namespace
}  // namespace egeria::controller
