#include "controller/engine/engine.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/base/status.h"
#include "common/reference/backend.h"
#include "common/reference/reference_chain.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "common/thread/thread.h"

namespace egeria::reference {
namespace {

struct LoadedModule {
  absl::StatusOr<std::shared_ptr<ReferenceModule>> module;
  int64_t snapshot = -1;
};

struct LoadedChain {
  std::unique_ptr<ReferenceChain> chain;
  std::vector<int64_t> snapshots;  // those that it was calibrated with
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineOptions options, std::vector<std::unique_ptr<Backend>> backends)
      : options_(std::move(options)), backends_(std::move(backends)) {
    at::set_num_threads(options_.threads);
  }

  void Forget(int64_t module) override {
    std::erase_if(chains_, [&](const auto& entry) {
      return std::find(entry.first.begin(), entry.first.end(), module) != entry.first.end();
    });
    modules_.erase(module);
  }

  EngineAnswer Evaluate(EngineTask task) override {
    const absl::Duration start = ThreadCpuTime();
    EngineAnswer answer;
    try {
      const c10::InferenceMode inference;
      answer.reading = EvaluateOrThrow(task, &answer.graph_refused);
    } catch (...) {
      answer.reading = StatusOfCurrentException("evaluation");
    }
    if (answer.reading.ok()) answer.reading->compute = options_.threads * (ThreadCpuTime() - start);
    return answer;
  }

 private:
  absl::StatusOr<EngineReading> EvaluateOrThrow(EngineTask& task, bool* graph_refused) {
    std::vector<int64_t> ids, snapshots;
    for (EngineModule& module : task.modules) {
      Load(module);
      ids.push_back(module.id);
      snapshots.push_back(module.snapshot);
    }
    LoadedChain& loaded = chains_[ids];
    if (loaded.chain == nullptr || loaded.chain->metric() != task.metric) {
      std::vector<std::shared_ptr<ReferenceModule>> modules;
      for (int64_t id : ids) {
        const LoadedModule& module = modules_.at(id);
        *graph_refused = absl::IsInvalidArgument(module.module.status());
        EGERIA_RETURN_IF_ERROR(module.module.status());
        modules.push_back(*module.module);
      }
      ChainLimits limits;
      limits.max_trial_time = options_.max_time_of_a_run / 4;
      loaded.chain =
          std::make_unique<ReferenceChain>(std::move(modules), &backends_, task.metric, SelectionOptions(), limits);
    }
    if (loaded.snapshots != snapshots) {
      loaded.chain->WeightsChanged();
      loaded.snapshots = snapshots;
    }
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i + 1 < task.sample.size(); ++i) inputs.push_back(ToTensor(task.sample[i]));
    const WireTensor& bytes = task.sample.back();
    std::vector<float> compared(bytes.size() / sizeof(float));
    std::memcpy(compared.data(), bytes.data(), bytes.size());
    EGERIA_ASSIGN_OR_RETURN(const ChainReading reading, loaded.chain->Evaluate(inputs, compared, bytes.spec.shape[0]));
    return EngineReading{.plasticity = reading.plasticity, .backend = reading.family};
  }

  // Takes what is new of the module.
  void Load(EngineModule& given) {
    const auto found = modules_.find(given.id);
    if (found == modules_.end() || given.graph) {
      const RunLimits limits{.max_bytes = options_.memory_bytes, .max_cpu_time = options_.max_time_of_a_run};
      LoadedModule made{.module = NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", "there is no graph")};
      if (given.graph) made.module = ReferenceModule::Create(*given.graph, limits);
      modules_.insert_or_assign(given.id, std::move(made));
    }
    LoadedModule& module = modules_.at(given.id);
    if (!given.weights || !module.module.ok()) return;
    (*module.module)->SetWeights(*std::move(given.weights));
    module.snapshot = given.snapshot;
  }

  const EngineOptions options_;
  const std::vector<std::unique_ptr<Backend>> backends_;
  std::map<int64_t, LoadedModule> modules_;
  std::map<std::vector<int64_t>, LoadedChain> chains_;  // by the ids of their modules
};

// A convolution of four channels.
graph::ModuleGraph SmallGraph() {
  graph::ModuleGraph small;
  small.inputs = {{"x", DataType::kFloat32, {-1, 4, 4, 4}}};
  small.weights = {{"w", DataType::kFloat32, {4, 4, 3, 3}}};
  graph::Node node{.op = "aten::conv2d"};
  node.args = {graph::Argument{graph::ValueRef{"x"}}, graph::Argument{graph::ValueRef{"w"}}};
  node.outputs = {"y"};
  small.nodes = {std::move(node)};
  small.outputs = {"y"};
  return small;
}

// Libraries look at the machine's processors when they are first used, for which they read files.
absl::Status WarmUp(Engine& engine) {
  constexpr int64_t kBatch = 4;
  const graph::ModuleGraph small = SmallGraph();
  const auto zeros = [](TensorSpec spec) {
    const size_t bytes = *ByteSize(spec);
    return MakeWireTensor(std::move(spec), std::vector<std::byte>(bytes));
  };
  EngineTask task;
  task.modules.push_back({.id = 0, .graph = small, .weights = std::vector<WireTensor>{zeros(small.weights[0])}});
  task.sample = {zeros({"x", DataType::kFloat32, {kBatch, 4, 4, 4}}),
                 zeros({"g", DataType::kFloat32, {kBatch, kBatch}})};
  const absl::Status status = engine.Evaluate(std::move(task)).reading.status();
  engine.Forget(0);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineOptions options) {
  EGERIA_ASSIGN_OR_RETURN(auto backends, MakeBackends(options.backends));
  auto engine = std::make_unique<EngineImpl>(std::move(options), std::move(backends));
  EGERIA_RETURN_IF_ERROR(WarmUp(*engine));
  return engine;
}

}  // namespace egeria::reference
