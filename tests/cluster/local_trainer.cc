#include "tests/cluster/local_trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/support/job_fixtures.h"

namespace egeria::testing {

worker::JobDescription LocalJob(int number) {
  worker::JobDescription job;
  job.job_id = JobId(TestJobId(number));
  job.world_size = 2;
  job.training_job = "local" + std::to_string(number);
  job.policy_json = R"({"plasticity": {"intervalSteps": 1, "window": 3, "batchSize": 2, "bootstrap": false}})";
  job.total_steps = 100'000;
  for (int i = 0; i < 4; ++i) {
    worker::ModuleDescription module;
    module.name = "layer" + std::to_string(i);
    module.parameter_count = 100;
    module.parameter_bytes = 400;
    module.local_reference = i < 3;
    job.modules.push_back(std::move(module));
  }
  graph::ModuleGraph relu;
  relu.inputs = {{"x", DataType::kFloat32, {-1, 8}}};
  relu.nodes = {{"aten::relu", "", {{graph::ValueRef{"x"}}}, {}, {"y"}}};
  relu.outputs = {"y"};
  job.modules[3].graph = relu;
  return job;
}

LocalTrainer::LocalTrainer(const std::string& address, worker::JobDescription job) {
  worker::AgentOptions options;
  options.controller = address;
  options.reconnect_backoff = absl::Milliseconds(20);
  for (job.rank = 0; job.rank < job.world_size; ++job.rank) {
    auto agent = worker::Agent::Start(options, job);
    EGERIA_CHECK(agent.ok());
    agents_.push_back(*std::move(agent));
  }
}

bool LocalTrainer::TrainUntil(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    Step();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

bool LocalTrainer::TrainUntilPlan(int64_t plan) {
  return TrainUntil([&] { return applied_.value() >= plan; });
}

void LocalTrainer::Step() {
  ++step_;
  Serve(*agents_[0]);
  PlanId common = agents_[0]->watermark();
  for (const auto& agent : agents_) common = std::min(common, agent->watermark());
  if (common > applied_) {
    frozen_prefix_ = agents_[0]->plan(common)->frozen_prefix;
    applied_ = common;
  }
  for (const auto& agent : agents_) {
    agent->ReportStep({step_, std::nullopt, {learning_rate}, frozen_prefix_, applied_});
  }
}

void LocalTrainer::Serve(worker::Agent& agent) {
  if (const auto wanted = agent.snapshot()) {
    EGERIA_CHECK(wanted->module == wanted->first_module);
    if (agent.Offer(worker::Snapshot{wanted->module, step_, wanted->version, {}})) ++snapshots_;
  }
  const auto sampling = agent.sampling();
  if (!sampling || step_ % sampling->interval_steps != 0) return;
  if (sampling->version != request_) readings_of_request_ = 0;
  request_ = sampling->version;
  const double plasticity = 1e-3 + 1e-2 * std::exp(-0.7 * readings_of_request_++);
  readings_.push_back({sampling->module, step_, sampling->version, plasticity});
  agent.Offer(readings_.back());
}

}  // namespace egeria::testing
