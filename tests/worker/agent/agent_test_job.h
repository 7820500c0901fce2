#ifndef EGERIA_TESTS_WORKER_AGENT_AGENT_TEST_JOB_H_
#define EGERIA_TESTS_WORKER_AGENT_AGENT_TEST_JOB_H_

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/agent/agent.h"

namespace egeria::worker {

// A job of four layer modules, of which the first has a graph.
inline JobDescription TestJob(int rank = 0, int world_size = 2) {
  JobDescription job;
  job.job_id = JobId("01234567-89ab-4cde-8f01-23456789abcd");
  job.generation = Generation(3);
  job.rank = rank;
  job.world_size = world_size;
  job.training_job = "test";
  job.policy_json = R"({"plasticity": {"window": 5}})";
  job.total_steps = 1000;
  for (int i = 0; i < 4; ++i) job.modules.push_back({"layer" + std::to_string(i), 100, 400, std::nullopt, ""});
  graph::ModuleGraph relu;
  relu.inputs = {{"x", DataType::kFloat32, {-1, 8}}};
  relu.nodes = {{"aten::relu", "", {{graph::ValueRef{"x"}}}, {}, {"y"}}};
  relu.outputs = {"y"};
  job.modules[0].graph = relu;
  job.modules[1].graph_error = "not traceable";
  return job;
}

inline WireTensor TestTensor(const std::string& name, size_t elements, float first = 0) {
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = first + static_cast<float>(i);
  return MakeWireTensor({name, DataType::kFloat32, {static_cast<int64_t>(elements)}}, values.data());
}

inline Sample TestSample(int64_t step, size_t elements = 16) {
  return Sample{ModuleIndex(1),
                ModuleIndex(1),
                step,
                1,
                {TestTensor("x", elements, static_cast<float>(step)), TestTensor("compared", 4)}};
}

inline Snapshot TestSnapshot(int module, int64_t version, size_t elements = 16) {
  return Snapshot{ModuleIndex(module), 10, version, {TestTensor("weight", elements, static_cast<float>(module))}};
}

// Polls a value that the agent's thread is about to change.
template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace egeria::worker

#endif  // EGERIA_TESTS_WORKER_AGENT_AGENT_TEST_JOB_H_
