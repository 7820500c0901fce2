// How gradients come to a policy, and what it says to an operator's freeze.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/job_manager_fixture.h"
#include "tests/support/export_all.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::TestRegistration;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const JobId kJob(::egeria::testing::TestJobId(1));

// 1,000 steps, so that `snr` starts at 400 and has gradients told of from 300 on.
v1::RegisterJobRequest SnrJob() {
  auto job = TestRegistration(1, 4);
  job.set_total_steps(1'000);
  job.mutable_policy()->mutable_snr();
  return job;
}

class JobManagerGradients : public JobManagerTest {
 protected:
  // Answers the request for gradients of `step`, with two parts whose gradients have this SNR, or none.
  absl::Status Tell(const Stream& stream, int64_t step, double snr, int parts = 2) {
    const v1::GradientRequest request = manager_->sessions().DirectiveFor(stream.id)->gradients();
    v1::GradientReading reading;
    reading.set_step(step);
    reading.set_request_version(request.version());
    reading.set_first_module(request.first_module());
    reading.set_parts(parts);
    reading.set_samples(64);
    reading.set_upload_id(++upload_);
    for (int module = request.first_module(); module < 4; ++module) {
      const double ratio = snr / (2 - snr);  // at the batch of one of two parts
      const double jitter = step % 2 == 0 ? 0.001 : -0.001;
      reading.add_mean_of_squares(1);
      reading.add_square_of_mean((1 + ratio + jitter) / 2);
    }
    return manager_->uploads().TakeGradients(stream.id, reading);
  }

  // Trains over these steps, telling of gradients where they are asked for.
  void Train(const Stream& stream, int64_t from, int64_t to, double snr) {
    for (int64_t step = from; step <= to; ++step) {
      const v1::Directive directive = Beat(stream, step);
      if (directive.has_gradients()) {
        ASSERT_TRUE(Tell(stream, step, snr).ok()) << step;
      }
    }
  }
};

TEST_F(JobManagerGradients, AreAskedForOfOneRankFromShortlyBeforeTheStart) {
  auto rank0 = Open(SnrJob(), 0), rank1 = Open(SnrJob(), 1);
  EXPECT_FALSE(Beat(*rank0, 299).has_gradients());
  const v1::Directive directive = Beat(*rank0, 301);
  ASSERT_TRUE(directive.has_gradients());
  EXPECT_EQ(directive.gradients().interval_steps(), 2);
  EXPECT_EQ(directive.gradients().first_module(), 0);
  EXPECT_FALSE(manager_->sessions().DirectiveFor(rank1->id)->has_gradients());
  EXPECT_THAT(std::string(Tell(*rank1, 342, 0).message()), StartsWith("[STALE_REQUEST] another rank"));
  manager_->sessions().Close(rank0->id);
  EXPECT_TRUE(manager_->sessions().DirectiveFor(rank1->id)->has_gradients());
  EXPECT_TRUE(Tell(*rank1, 342, 0).ok());
}

TEST_F(JobManagerGradients, LeadToAFreezeAndSurviveARestart) {
  auto stream = Open(SnrJob());
  Train(*stream, 330, 399, 0.001);
  EXPECT_EQ(Summary(*stream).plan_id(), 0);
  const std::string before = manager_->DebugString(kJob);
  EXPECT_THAT(before, HasSubstr("SNR 0.00"));
  Restart();
  EXPECT_EQ(manager_->DebugString(kJob), before);
  stream = Open(SnrJob());
  Train(*stream, 400, 400, 0.001);
  EXPECT_EQ(Summary(*stream).decided_prefix(), 2) << "readings of before the restart count";
  const v1::Directive directive = *manager_->sessions().DirectiveFor(stream->id);
  EXPECT_EQ(directive.gradients().first_module(), 2);
  EXPECT_EQ(directive.plans(0).frozen_prefix(), 2);
  const ManagerView view = manager_->View();
  EXPECT_GT(view.jobs[0].policy.modules[3].snr.value().upper, 0);
  EXPECT_EQ(view.jobs[0].totals.gradient_readings, 1) << "since the restart";
}

TEST_F(JobManagerGradients, AreRefusedWhereTheyAreBadOrUnasked) {
  auto stream = Open(SnrJob());
  Beat(*stream, 100);
  EXPECT_THAT(std::string(Tell(*stream, 100, 0).message()), StartsWith("[STALE_REQUEST] no gradients"));
  Beat(*stream, 350);
  EXPECT_THAT(std::string(Tell(*stream, 350, 0, 0).message()), StartsWith("[BAD_GRADIENTS]"));
  ASSERT_TRUE(Tell(*stream, 350, 0).ok());
  EXPECT_THAT(std::string(Tell(*stream, 350, 0).message()), StartsWith("[STALE_REQUEST] step 350"));
  const auto refused = manager_->View().jobs[0].totals.uploads_refused;
  EXPECT_EQ(refused.at("BAD_GRADIENTS"), 1);
  EXPECT_EQ(refused.at("STALE_REQUEST"), 2);
  EXPECT_TRUE(absl::IsAborted(manager_->uploads().TakeGradients(SessionId(99), {})));
}

TEST_F(JobManagerGradients, AreLostToTheWorkerWhereTheJournalFails) {
  max_backlog_bytes_ = 0;
  Restart();
  auto stream = Open(SnrJob());
  Beat(*stream, 350);
  disk_.failing = true;
  manager_->registrar().Register(testing::TestRegistration(3)).status().IgnoreError();  // takes the room that there is
  EXPECT_THAT(std::string(Tell(*stream, 350, 0).message()), StartsWith("[JOURNAL]"));
}

TEST_F(JobManagerGradients, OfOnePartAreSaidToBlock) {
  auto stream = Open(SnrJob());
  Beat(*stream, 350);
  ASSERT_TRUE(Tell(*stream, 350, 0, 1).ok());
  EXPECT_THAT(Summary(*stream).blocked(), HasSubstr("[ONE_PART]"));
}

TEST_F(JobManagerGradients, AModuleThatCannotBeEvaluatedBlocksNoPolicyThatReadsNoPlasticity) {
  auto job = SnrJob();
  for (v1::LayerModule& module : *job.mutable_modules()) module.clear_graph();
  auto stream = Open(job);
  Beat(*stream, 10);
  EXPECT_EQ(Summary(*stream).blocked(), "");
  Train(*stream, 330, 400, 0.001);
  EXPECT_EQ(Summary(*stream).decided_prefix(), 2);
}

TEST_F(JobManagerGradients, ABadFreezeByHandIsVetoedAndForcedAndStays) {
  auto stream = Open(SnrJob());
  Train(*stream, 140, 150, 0.2);
  EXPECT_THAT(std::string(manager_->operators().SetFrozenPrefix(kJob, 2, "", false).status().message()),
              StartsWith("[VETOED] the policy snr objects: step 150 of 1000 is before 40 %"));
  EXPECT_EQ(Summary(*stream).plan_id(), 0);
  ASSERT_TRUE(manager_->operators().SetFrozenPrefix(kJob, 2, "", true).ok());
  EXPECT_EQ(Summary(*stream).decided_prefix(), 2);
  Beat(*stream, 151);
  Train(*stream, 152, 260, 0.2);
  EXPECT_EQ(Summary(*stream).decided_prefix(), 2);
  EXPECT_TRUE(manager_->operators().SetFrozenPrefix(kJob, 0, "", false).ok()) << "nobody objects to unfreezing";
}

TEST_F(JobManagerGradients, FinetuneFreezesAtTheStepThatItAwaits) {
  auto job = TestRegistration(1, 4);
  job.mutable_policy()->mutable_finetune()->set_budget(0.1);
  auto stream = Open(job);
  v1::Heartbeat heartbeat;
  for (const int64_t step : {1, 7, 8}) {
    heartbeat.set_step(step);
    ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, heartbeat).ok());
    EXPECT_EQ(Summary(*stream).decided_prefix(), step < 8 ? 0 : 1);
  }
  EXPECT_THAT(testing::ExportAll(*manager_, kJob)->back().decision().reason(), HasSubstr("of the parameters"));
}

TEST_F(JobManagerGradients, AreExportedWithWhatAPolicyKnowsOfItsJob) {
  auto job = SnrJob();
  job.mutable_modules(0)->set_step_share(0.5);
  job.add_planned_learning_rates(0.1);
  auto stream = Open(job);
  Beat(*stream, 350);
  ASSERT_TRUE(Tell(*stream, 350, 0).ok());
  const auto records = *testing::ExportAll(*manager_, kJob);
  EXPECT_EQ(records[0].header().step_shares(0), 0.5);
  EXPECT_EQ(records[0].header().parameter_counts(1), 200);
  EXPECT_EQ(records[0].header().planned_learning_rates_size(), 1);
  const v1::GradientReading& gradients = records.back().observation().gradients();
  EXPECT_EQ(gradients.step(), 350);
  EXPECT_EQ(gradients.mean_of_squares_size(), 4);
  EXPECT_EQ(gradients.request_version(), 0) << "of the stream, not of the step";
}

}  // namespace
}  // namespace egeria::controller
