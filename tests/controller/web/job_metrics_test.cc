#include "controller/web/job_metrics.h"

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// A job about which everything is known.
JobView FullJob(int number, const std::string& name) {
  JobView job;
  job.summary.set_job_id(testing::TestJobId(number));
  job.summary.set_training_job(name);
  job.summary.set_phase(v1::JOB_PHASE_RUNNING);
  job.summary.set_world_size(2);
  job.summary.set_connected_ranks(1);
  job.summary.set_step(120);
  job.summary.set_decided_prefix(2);
  job.summary.set_applied_prefix(1);
  job.summary.set_frozen_parameter_share(0.25);
  job.modules = {"stem", "layer1", "head"};
  job.policy.modules.resize(3);
  job.policy.modules[1].plasticity = 0.5;
  job.policy.modules[1].slope = -0.25;
  job.policy.modules[1].threshold = 0.125;
  job.policy.modules[1].consecutive = 3;
  job.policy.modules[1].snr = policy::SnrEstimate{0.25, -0.125, 0.5};
  job.totals.readings = 7;
  job.totals.gradient_readings = 11;
  job.totals.decisions[{"freeze", "policy"}] = 2;
  job.totals.commits = 1;
  job.totals.uploads_refused["BAD_SHAPE"] = 4;
  job.totals.reference_seconds["int8"] = 1.5;
  job.totals.evaluations["int8"] = 7;
  job.totals.snapshot_bytes = 1'000;
  job.account.emplace().set_saved_seconds(12.5);
  job.account->set_spent_seconds(0.5);
  job.cache.emplace().set_state("on");
  job.cache->set_hits(90);
  job.cache->set_computed(10);
  job.last_activity = kNow;
  return job;
}

std::string TextOf(ManagerView view) {
  view.now = kNow;
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, JobMetrics(view, absl::Minutes(15)));
  return out.str();
}

TEST(JobMetrics, ShowWhatIsKnownOfAJob) {
  ManagerView view;
  view.jobs = {FullJob(1, "resnet")};
  view.evaluator.queued_bytes = 99;
  view.evaluator.dropped_late = 3;
  view.evaluator.engine_ends = {{"deadline", 2}};
  view.jobs[0].unusable = {{"layer1", "REFERENCE_CRASHED"}};
  const std::string text = TextOf(view);
  for (const char* line : {
           "egeria_jobs{phase=\"running\"} 1",
           "egeria_connected_streams 1",
           "egeria_job_step{training_job=\"resnet\"} 120",
           "egeria_plasticity{training_job=\"resnet\",module=\"layer1\"} 0.5",
           "egeria_plasticity_slope{training_job=\"resnet\",module=\"layer1\"} -0.25",
           "egeria_plasticity_threshold{training_job=\"resnet\",module=\"layer1\"} 0.125",
           "egeria_gradient_readings_total{training_job=\"resnet\"} 11",
           "egeria_gradient_snr{training_job=\"resnet\",module=\"layer1\"} 0.25",
           "egeria_gradient_snr_lower{training_job=\"resnet\",module=\"layer1\"} -0.125",
           "egeria_gradient_snr_upper{training_job=\"resnet\",module=\"layer1\"} 0.5",
           "egeria_frozen_prefix{training_job=\"resnet\",state=\"decided\"} 2",
           "egeria_frozen_prefix{training_job=\"resnet\",state=\"applied\"} 1",
           "egeria_frozen_parameters_ratio{training_job=\"resnet\"} 0.25",
           "egeria_decisions_total{training_job=\"resnet\",action=\"freeze\",reason=\"policy\"} 2",
           "egeria_uploads_refused_total{training_job=\"resnet\",reason=\"bad_shape\"} 4",
           "egeria_reference_seconds_total{training_job=\"resnet\",backend=\"int8\"} 1.5",
           "egeria_job_saved_seconds{training_job=\"resnet\"} 12.5",
           "egeria_job_spent_seconds{training_job=\"resnet\"} 0.5",
           "egeria_job_cache_samples_total{training_job=\"resnet\",result=\"hit\"} 90",
           "egeria_job_cache_samples_total{training_job=\"resnet\",result=\"computed\"} 10",
           "egeria_job_cache_state{training_job=\"resnet\",state=\"on\"} 1",
           "egeria_reference_samples_dropped_total{reason=\"late\"} 3",
           "egeria_reference_process_ends_total{reason=\"crash\"} 0",
           "egeria_reference_process_ends_total{reason=\"deadline\"} 2",
           "egeria_module_without_reference{training_job=\"resnet\",module=\"layer1\","
           "reason=\"reference_crashed\"} 1",
           "egeria_reference_queue_bytes 99",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(text, Not(HasSubstr("module=\"stem\""))) << "nothing was read of it";
  EXPECT_THAT(text, Not(HasSubstr("rank=")));
}

TEST(JobMetrics, NoTwoJobsHaveOneLabelThoughTheirIdsBeginAlike) {
  std::vector<JobView> jobs;
  for (const char* id : {"00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002",
                         "00000000-0000-4000-8000-000000000003"}) {
    jobs.push_back(FullJob(1, "same"));
    jobs.back().summary.set_job_id(id);
  }
  std::set<std::string> labels;
  for (const auto& [id, label] : TrainingJobLabels(jobs)) labels.insert(label);
  EXPECT_EQ(labels.size(), 3u);
}

TEST(JobMetrics, OfAJobWithoutStreamsDisappearAfterAWhile) {
  ManagerView view;
  view.jobs = {FullJob(1, "resnet")};
  view.jobs[0].summary.set_phase(v1::JOB_PHASE_FINISHED);
  view.jobs[0].summary.set_connected_ranks(0);
  view.jobs[0].last_activity = kNow - absl::Minutes(14);
  EXPECT_THAT(TextOf(view), HasSubstr("training_job=\"resnet\""));
  view.jobs[0].last_activity = kNow - absl::Minutes(16);
  EXPECT_THAT(TextOf(view), Not(HasSubstr("training_job=\"resnet\"")));
  EXPECT_THAT(TextOf(view), HasSubstr("egeria_jobs{phase=\"finished\"} 1\n"));
}

TEST(TrainingJobLabels, AreNeverTheSame) {
  std::vector<JobView> jobs = {FullJob(1, "resnet"), FullJob(2, "resnet"), FullJob(3, ""), FullJob(4, "bert")};
  jobs[0].summary.set_phase(v1::JOB_PHASE_SILENT);
  auto labels = TrainingJobLabels(jobs);
  EXPECT_EQ(labels[testing::TestJobId(2)], "resnet") << "the running one";
  EXPECT_EQ(labels[testing::TestJobId(1)], "resnet-00000001");
  EXPECT_EQ(labels[testing::TestJobId(3)], testing::TestJobId(3));
  jobs.push_back(FullJob(5, "resnet-00000001"));
  std::set<std::string> distinct;
  for (const auto& [id, label] : TrainingJobLabels(jobs)) distinct.insert(label);
  EXPECT_EQ(distinct.size(), jobs.size());
}

TEST(JobMetrics, ArePromtoolsIdeaOfMetrics) {
  ManagerView view;
  view.jobs = {FullJob(1, "resnet"), FullJob(2, "a \"quoted\" \\ name\nof two lines")};
  testing::TempFolder folder;
  std::ofstream(folder / "metrics") << TextOf(view);
  FILE* promtool = popen(("promtool check metrics < " + folder / "metrics" + " 2>&1").c_str(), "r");
  ASSERT_NE(promtool, nullptr);
  std::string said;
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), promtool) != nullptr) said += buffer;
  const int status = pclose(promtool);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << said;
  EXPECT_EQ(said, "");
}

TEST(JobMetrics, AreAllDocumented) {
  std::ifstream file(std::string(EGERIA_SOURCE_DIR) + "/docs/reference/metrics.md");
  std::stringstream documentation;
  documentation << file.rdbuf();
  ManagerView view;
  view.jobs = {FullJob(1, "resnet")};
  view.now = kNow;
  for (const auto& family : JobMetrics(view, absl::Minutes(15))) {
    EXPECT_THAT(documentation.str(), HasSubstr("`" + family.name + "`"));
  }
}

}  // namespace
}  // namespace egeria::controller
