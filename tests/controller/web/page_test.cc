#include "controller/web/page.h"

#include <string>

#include "controller/web/job_history.h"
#include "controller/web/job_json.h"
#include "controller/web/job_words.h"
#include "controller/web/metrics_server.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/controller/job/job_manager_fixture.h"
#include "tests/support/http.h"

namespace egeria::controller {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PageTest : public JobManagerTest {
 protected:
  void Serve(bool page = true) {
    MetricsServer::Options options;
    options.listen = "127.0.0.1:0";
    options.version = "1.2.3";
    options.page = page;
    auto server = MetricsServer::Start(options, manager_.get(), &health_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    base_ = server_->url().substr(0, server_->url().rfind('/') + 1);
  }
  std::string Get(const std::string& path) { return testing::HttpGet(base_ + path); }
  json GetJson(const std::string& path) { return json::parse(Get(path), nullptr, false); }

  // A job with some readings and decisions.
  std::shared_ptr<Stream> Train(int64_t* step) {
    v1::RegisterJobRequest request = testing::TestRegistration(1);
    request.set_training_job("<script>alert(1)</script>");
    auto stream = Open(request);
    TrainUntilPlan(*stream, step, PlanId(1));
    return stream;
  }

  metrics::Health health_;
  std::unique_ptr<MetricsServer> server_;
  std::string base_;
};

TEST_F(PageTest, ShowsWhatHappened) {
  int64_t step = 0;
  const auto stream = Train(&step);
  v1::Heartbeat heartbeat;
  heartbeat.set_step(step);
  heartbeat.mutable_losses()->set_first_step(step - 1);
  for (float loss : {2.5f, 1.5f}) heartbeat.mutable_losses()->add_values(loss);
  heartbeat.mutable_account()->set_saved_seconds(12.5);
  heartbeat.mutable_cache()->set_state("off");
  heartbeat.mutable_cache()->set_reason("reading takes\nlonger");
  ASSERT_TRUE(manager_->sessions().Heartbeat(stream->id, heartbeat).ok());
  Serve();
  const json list = GetJson("api/jobs");
  EXPECT_EQ(list["version"], "1.2.3");
  EXPECT_EQ(list["phases"]["running"], 1);
  ASSERT_EQ(list["jobs"].size(), 1u);
  EXPECT_EQ(list["jobs"][0]["label"], "<script>alert(1)</script>");
  EXPECT_EQ(list["jobs"][0]["saved_seconds"], 12.5);

  const std::string id = testing::TestJobId(1);
  const json job = GetJson("api/jobs/" + id);
  const JobView view = manager_->View().jobs.at(0);
  EXPECT_EQ(job["step"], step);
  EXPECT_EQ(job["decided_prefix"], 1);
  EXPECT_EQ(job["totals"]["readings"], view.totals.readings);
  EXPECT_EQ(job["module_states"][0]["plasticity"], *view.policy.modules[0].plasticity);
  EXPECT_EQ(job["cache"]["state"], "off");
  EXPECT_EQ(job["cache"]["reason"], "reading takes\\nlonger");
  EXPECT_EQ(job["cache_words"], (json{"The cache does not pay, so it is not asked.", "Reading takes\\nlonger."}));
  EXPECT_EQ(job["words"], (json{"1 of 2 ranks are not connected. Nothing more is frozen or unfrozen until all are.",
                                "The controller has decided to freeze 1 modules. The ranks have frozen 0 so far."}));
  EXPECT_EQ(job["rank_states"][0]["connected"], true);

  const json history = GetJson("api/jobs/" + id + "/history");
  EXPECT_EQ(history["complete"], true);
  EXPECT_EQ(history["loss"], json::array({{step - 1, step}, {2.5, 1.5}}));
  ASSERT_EQ(history["decisions"].size(), 1u);
  EXPECT_EQ(history["decisions"][0]["step"], step);
  EXPECT_THAT(history["decisions"][0]["reason"].get<std::string>(), HasSubstr("slope"));
  EXPECT_EQ(Get("api/jobs/" + testing::TestJobId(2)), "") << "an unknown job";
  EXPECT_EQ(Get("api/nonsense"), "");
}

TEST(JobWordsTest, SaysWhatIsInTheWay) {
  JobView view;
  v1::JobSummary& job = view.summary;
  job.set_phase(v1::JOB_PHASE_RUNNING);
  job.set_world_size(2);
  job.set_connected_ranks(2);
  job.set_module_count(4);
  EXPECT_THAT(WordsOnJob(view), ElementsAre("Nothing is in the way."));
  job.set_decided_prefix(3);
  job.set_applied_prefix(3);
  EXPECT_THAT(WordsOnJob(view), ElementsAre("All modules that can freeze are frozen."));
  job.set_blocked("[RATES_STAY_HIGH] the rates to come are high");
  job.set_paused(true);
  view.totals.uploads_refused = {{"STALE_REQUEST", 5}, {"TOO_LARGE", 2}};
  EXPECT_THAT(WordsOnJob(view), ElementsAre("Nothing more can freeze. The rates to come are high.",
                                            "An operator has paused the policy. `egeria resume` lets it decide again.",
                                            "The controller has refused uploads: too_large 2 times."));
  job.clear_blocked();
  job.set_paused(false);
  view.totals.uploads_refused.clear();
  job.set_advice("[STOP_INSTEAD] the end learns little");
  EXPECT_THAT(WordsOnJob(view), ElementsAre("Advice: The end learns little."));
  job.set_phase(v1::JOB_PHASE_FINISHED);
  job.set_paused(false);
  view.totals.uploads_refused.clear();
  EXPECT_THAT(WordsOnJob(view), ElementsAre("The training has finished."));
  EXPECT_THAT(WordsOnCache(view), ElementsAre("Rank 0 has told of no cache."));
}

TEST_F(PageTest, AHistoryIsWhatThePolicySaw) {
  int64_t step = 0;
  const auto stream = Train(&step);
  JobHistory history{JobId(testing::TestJobId(1))};
  ASSERT_TRUE(history.Update(*manager_, absl::Minutes(1)).ok());
  const size_t before = history.of_modules()[0].plasticity.points().size();
  EXPECT_GT(before, 3u);
  const JobView view = manager_->View().jobs.at(0);
  EXPECT_EQ(history.of_modules()[0].plasticity.points().back().value, *view.policy.modules[0].plasticity);
  EXPECT_EQ(history.decision_count(), 1);

  TrainUntilPlan(*stream, &step, PlanId(2));
  ASSERT_TRUE(history.Update(*manager_, absl::Minutes(1)).ok());
  EXPECT_EQ(history.of_modules()[0].plasticity.points().size(), before) << "each record is read once";
  EXPECT_FALSE(history.of_modules()[1].slope.points().empty());
  EXPECT_EQ(history.decision_count(), 2);

  v1::RegisterJobRequest again = testing::TestRegistration(1);
  again.set_generation(1);
  again.set_step(10);
  ASSERT_TRUE(manager_->registrar().Register(again).ok());
  ASSERT_TRUE(history.Update(*manager_, absl::Minutes(1)).ok());
  EXPECT_TRUE(history.complete());
  EXPECT_TRUE(history.of_modules()[1].plasticity.points().empty()) << "what came after the checkpoint did not happen";
}

TEST_F(PageTest, IsReadInPiecesWhereItIsLong) {
  int64_t step = 0;
  const auto stream = Train(&step);
  JobHistory history{JobId(testing::TestJobId(1))};
  ASSERT_TRUE(history.Update(*manager_, absl::ZeroDuration()).ok());
  EXPECT_FALSE(history.complete());
}

TEST_F(PageTest, CanBeSwitchedOff) {
  Serve(/*page=*/false);
  EXPECT_THAT(Get("metrics"), HasSubstr("egeria_jobs"));
  EXPECT_EQ(Get(""), "");
  EXPECT_EQ(Get("api/jobs"), "");
}

TEST_F(PageTest, HasAllItsFilesAndLoadsNothingFromElsewhere) {
  Serve();
  const std::string page = Get("");
  EXPECT_THAT(page, AnyOf(StartsWith("<!DOCTYPE html>"), StartsWith("This build of egeria-controller has no page")));
  EXPECT_THAT(page, Not(HasSubstr("://")));
  for (size_t at = 0; (at = page.find("=\"", at)) != std::string::npos; ++at) {
    const std::string target = page.substr(at + 2, page.find('"', at + 2) - at - 2);
    if (target.ends_with(".js") || target.ends_with(".css") || target.ends_with(".svg") || target.ends_with(".txt")) {
      EXPECT_NE(Get(target), "") << target;
    }
  }
}

TEST(JobsJson, ListsABoundedNumberAndThoseThatRunFirst) {
  ManagerView view;
  for (int i = 0; i < 2'000; ++i) {
    JobView& job = view.jobs.emplace_back();
    job.summary.set_job_id(testing::TestJobId(i));
    job.summary.set_training_job("not UTF-8: \xff");
    job.summary.set_phase(i == 1'234 ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_FINISHED);
    job.last_activity = absl::FromUnixSeconds(i);
  }
  const json list = json::parse(JobsJson(view, "1", "the journal: full"));
  EXPECT_EQ(list["jobs"].size(), kListedJobs);
  EXPECT_EQ(list["phases"]["finished"], 1'999);
  EXPECT_EQ(list["jobs"][0]["id"], testing::TestJobId(1'234));
  EXPECT_EQ(list["jobs"][1]["id"], testing::TestJobId(1'999));
  EXPECT_EQ(list["jobs"][0]["name"], "not UTF-8: \xef\xbf\xbd");
  EXPECT_EQ(list["trouble"], "the journal: full");
}

}  // namespace
}  // namespace egeria::controller
