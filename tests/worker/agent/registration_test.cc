#include "worker/agent/registration.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/agent/agent_test_job.h"

namespace egeria::worker {
namespace {

using ::testing::HasSubstr;

TEST(ParsePolicy, ReadsProtobufsJson) {
  const auto policy = ParsePolicy(R"({"plasticity": {"window": 5, "tolerance": 0.25, "signedSlope": true}})");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->plasticity().window(), 5);
  EXPECT_EQ(policy->plasticity().tolerance(), 0.25);
  EXPECT_TRUE(policy->plasticity().signed_slope());
  EXPECT_FALSE(policy->plasticity().has_batch_size());
}

TEST(ParsePolicy, TakesPlasticityForNothing) {
  const auto policy = ParsePolicy("");
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->has_plasticity());
}

TEST(ParsePolicy, TellsWhatThereIsWhenItDoesNotUnderstand) {
  for (const char* json : {R"({"plasticity": {"windw": 5}})", R"({"plastic": {}})",
                           R"({"plasticity": {"window": "x"}})", "not json", "{}", R"({"none": {}, "schedule": {}})"}) {
    const auto policy = ParsePolicy(json);
    ASSERT_FALSE(policy.ok()) << json;
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(rpc::ErrorName(policy.status()), "BAD_POLICY");
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("plasticity (interval_steps, window")) << json;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("none ()")) << json;
  }
}

TEST(MakeRegistration, CarriesTheWholeJob) {
  JobDescription job = TestJob();
  job.step = 40;
  job.frozen_prefix = 2;
  job.applied_plan = PlanId(5);
  job.observe = true;
  job.modules[2].step_share = 0.25;
  job.embedding_prefix = 2;
  job.planned_learning_rates = {0.5, 0.25, 0};
  const auto request = MakeRegistration(job);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->job_id(), job.job_id.text());
  EXPECT_EQ(request->generation(), 3);
  EXPECT_EQ(request->world_size(), 2);
  EXPECT_EQ(request->policy().plasticity().window(), 5);
  EXPECT_EQ(request->total_steps(), 1000);
  EXPECT_EQ(request->mode(), v1::MODE_OBSERVE);
  EXPECT_EQ(request->step(), 40);
  EXPECT_EQ(request->frozen_prefix(), 2);
  EXPECT_EQ(request->applied_plan(), 5);
  EXPECT_FALSE(request->host().empty());
  ASSERT_EQ(request->modules_size(), 4);
  EXPECT_EQ(request->modules(0).graph().nodes(0).op(), "aten::relu");
  EXPECT_FALSE(request->modules(1).has_graph());
  EXPECT_EQ(request->modules(1).graph_error(), "not traceable");
  EXPECT_EQ(request->modules(2).step_share(), 0.25);
  EXPECT_EQ(request->embedding_prefix(), 2);
  EXPECT_EQ(request->modules(3).name(), "layer3");
  ASSERT_EQ(request->planned_learning_rates_size(), 3);
  EXPECT_EQ(request->planned_learning_rates(1), 0.25);
  EXPECT_EQ(request->modules(3).parameter_bytes(), 400);
}

TEST(MakeRegistration, SaysThatLossesAreReportedUnlessTheyNeverAre) {
  JobDescription job = TestJob();
  EXPECT_FALSE(MakeRegistration(job)->losses_unreported());
  job.losses_reported = false;
  EXPECT_TRUE(MakeRegistration(job)->losses_unreported());
}

TEST(MakeRegistration, NamesTheModulesThatThisProcessEvaluatesItself) {
  JobDescription job = TestJob();
  job.modules[1].local_reference = true;
  const auto request = MakeRegistration(job);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->modules(0).local_reference());
  EXPECT_TRUE(request->modules(1).local_reference());
  EXPECT_EQ(request->modules(1).graph_error(), "not traceable");
}

TEST(MakeRegistration, RefusesWhatNoControllerWouldTake) {
  const std::vector<std::pair<const char*, std::function<void(JobDescription&)>>> cases = {
      {"id", [](auto& job) { job.job_id = JobId("x"); }},
      {"rank", [](auto& job) { job.rank = 2; }},
      {"negative rank", [](auto& job) { job.rank = -1; }},
      {"world size", [](auto& job) { job.world_size = 0; }},
      {"generation", [](auto& job) { job.generation = Generation(-1); }},
      {"one module", [](auto& job) { job.modules.resize(1); }},
      {"513 modules", [](auto& job) { job.modules.resize(513); }},
      {"empty name", [](auto& job) { job.modules[2].name.clear(); }},
      {"same name", [](auto& job) { job.modules[2].name = "layer1"; }},
      {"long name", [](auto& job) { job.modules[2].name.assign(257, 'x'); }},
      {"negative size", [](auto& job) { job.modules[2].parameter_bytes = -1; }},
      {"graph and local reference", [](auto& job) { job.modules[0].local_reference = true; }},
      {"whole model frozen", [](auto& job) { job.frozen_prefix = 4; }},
      {"negative prefix", [](auto& job) { job.frozen_prefix = -1; }},
      {"plan", [](auto& job) { job.applied_plan = PlanId(-1); }},
      {"step", [](auto& job) { job.step = -1; }},
      {"a share of no step", [](auto& job) { job.modules[1].step_share = 1.01; }},
      {"a negative rate", [](auto& job) { job.planned_learning_rates = {0.1, -0.1}; }},
      {"1,025 rates", [](auto& job) { job.planned_learning_rates.resize(1025); }},
      {"policy", [](auto& job) { job.policy_json = "{\"x\": 1}"; }},
  };
  for (const auto& [name, spoil] : cases) {
    JobDescription job = TestJob();
    spoil(job);
    EXPECT_EQ(MakeRegistration(job).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(MakeRegistration, LeavesOutTheLargestGraphsWhereAllWouldNotFitAMessage) {
  JobDescription job = TestJob();
  job.modules[1] = {"layer1", 1, 4, job.modules[0].graph, ""};
  const std::string large(rpc::kMaxRequestBytes, 'x');
  job.modules[1].graph->nodes[0].args.push_back({large});
  const auto request = MakeRegistration(job);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_LT(request->ByteSizeLong(), static_cast<size_t>(rpc::kMaxRequestBytes));
  EXPECT_TRUE(request->modules(0).has_graph());
  EXPECT_FALSE(request->modules(1).has_graph());
  EXPECT_THAT(request->modules(1).graph_error(), HasSubstr("too large"));
}

}  // namespace
}  // namespace egeria::worker
