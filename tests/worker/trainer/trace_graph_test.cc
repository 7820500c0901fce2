#include "worker/trainer/trace_graph.h"

#include <condition_variable>
#include <mutex>
#include <set>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Parallel.h"
#include "controller/reference/evaluator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/session/probe.h"
#include "worker/session/wire.h"
#include "worker/trainer/model/models.h"

namespace egeria::trainer {
namespace {

using ::testing::HasSubstr;
using worker::Block;
using worker::LayerModule;

std::vector<LayerModule> ModulesOf(const std::string& model, int channels) {
  at::set_num_threads(1);  // small tensors are slower on more
  at::manual_seed(11);
  const auto blocks = MakeModel(model, channels, 10);
  EXPECT_TRUE(blocks.ok());
  return *worker::MakeLayerModules(*blocks, {});
}

// A layer module of one block that computes `function`.
template <typename Function>
LayerModule ModuleOf(Function function) {
  class FunctionBlock : public Block {
   public:
    explicit FunctionBlock(Function function) : function_(std::move(function)) {}
    at::Tensor forward(at::Tensor input) override { return function_(input); }

   private:
    Function function_;
  };
  return LayerModule("m", {{"m", std::make_shared<FunctionBlock>(std::move(function))}});
}

std::string ErrorOf(const LayerModule& module, const at::Tensor& input) {
  const auto traced = TraceModule(module, input);
  EXPECT_FALSE(traced.ok());
  return std::string(traced.status().message());
}

TEST(TraceGraph, RecordsEveryModuleOfEveryModelInTheOperatorsOfTheReferenceEngine) {
  struct Case {
    const char* model;
    std::vector<int64_t> shape;
  };
  std::set<std::string> operators;
  for (const Case& c :
       {Case{"digitsnet", {4, 1, 8, 8}}, Case{"resnet20", {4, 3, 32, 32}}, Case{"resnet56", {4, 3, 32, 32}}}) {
    at::Tensor input = at::zeros(c.shape);
    for (const LayerModule& module : ModulesOf(c.model, static_cast<int>(c.shape[1]))) {
      const auto traced = TraceModule(module, input);
      ASSERT_TRUE(traced.ok()) << c.model << " " << module.name() << ": " << traced.status();
      EXPECT_TRUE(graph::Validate(traced->graph).ok());
      EXPECT_EQ(traced->graph.inputs[0].shape[0], -1);
      EXPECT_EQ(traced->weights.size(), traced->graph.weights.size());
      for (const graph::Node& node : traced->graph.nodes) operators.insert(node.op + "." + node.overload);
      input = OutputShapedLike(module, input);
    }
  }
  EXPECT_THAT(operators, ::testing::UnorderedElementsAre("aten::conv2d.", "aten::batch_norm.", "aten::relu.",
                                                         "aten::add.Tensor", "aten::adaptive_avg_pool2d.",
                                                         "aten::flatten.using_ints", "aten::linear."));
}

TEST(TraceGraph, NamesEveryWeightOnceAndLeavesOutWhatIsNotUsed) {
  const std::vector<LayerModule> modules = ModulesOf("digitsnet", 1);
  const auto traced = TraceModule(modules[0], at::zeros({2, 1, 8, 8}));
  ASSERT_TRUE(traced.ok());
  std::vector<std::string> names;
  for (const TensorSpec& weight : traced->graph.weights) names.push_back(weight.name);
  EXPECT_THAT(
      names, ::testing::ElementsAre("stage1.block0.conv.weight", "stage1.block0.norm.weight", "stage1.block0.norm.bias",
                                    "stage1.block0.norm.running_mean", "stage1.block0.norm.running_var",
                                    "stage1.block1.conv.weight", "stage1.block1.norm.weight", "stage1.block1.norm.bias",
                                    "stage1.block1.norm.running_mean", "stage1.block1.norm.running_var"));
}

// The whole way of a reading but for the network: graph, snapshot and sample of a model give a plasticity of
// nothing at once, and of something after the weights have moved.
TEST(TraceGraph, TheReferenceEngineComputesWhatTheModuleDoes) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<reference::Evaluator::Result> results;
  reference::EvaluatorOptions options;
  options.backends = {"aten"};
  options.program = EGERIA_REFERENCE_PROGRAM;
  options.cpu_load = [] { return 0.0; };
  auto evaluator = reference::Evaluator::Start(options, [&](const reference::Evaluator::Result& result) {
    const std::lock_guard<std::mutex> lock(mutex);
    results.push_back(result);
    arrived.notify_one();
  });
  ASSERT_TRUE(evaluator.ok());
  std::vector<LayerModule> modules = ModulesOf("resnet20", 3);
  {  // running statistics that are not the initial ones
    at::NoGradGuard no_gradients;
    at::Tensor output = at::randn({8, 3, 32, 32});
    for (const LayerModule& module : modules) output = module.Run(output);
  }
  const JobId job("00000000-0000-4000-8000-000000000001");
  std::vector<std::optional<graph::ModuleGraph>> graphs;
  std::vector<std::vector<worker::NamedTensor>> weights;
  std::vector<at::Tensor> inputs;
  at::Tensor input = at::randn({6, 3, 32, 32});
  for (const LayerModule& module : modules) {
    auto traced = TraceModule(module, input);
    ASSERT_TRUE(traced.ok());
    graphs.push_back(traced->graph);
    weights.push_back(traced->weights);
    inputs.push_back(input);
    at::NoGradGuard no_gradients;
    worker::EvalModeGuard eval(module.blocks());
    input = module.Run(input);
  }
  for (const absl::Status& status : (*evaluator)->SetJob(job, graphs, {})) ASSERT_TRUE(status.ok()) << status;
  auto reading = [&](size_t m) {
    const at::Tensor gram = worker::Probe(modules, m, m, inputs[m]);
    const absl::Status status =
        (*evaluator)
            ->SubmitSample(job, {.first_module = ModuleIndex(m),
                                 .module = ModuleIndex(m),
                                 .step = 1,
                                 .tensors = {*worker::ToWire("input", inputs[m]), *worker::ToWire("gram", gram)}});
    EXPECT_TRUE(status.ok()) << status;
    std::unique_lock<std::mutex> lock(mutex);
    arrived.wait(lock, [&] { return !results.empty(); });
    const auto evaluation = results.back().evaluation;
    results.clear();
    EXPECT_TRUE(evaluation.ok()) << evaluation.status();
    return evaluation.ok() ? evaluation->plasticity : -1;
  };
  for (size_t m = 0; m < modules.size(); ++m) {
    std::vector<WireTensor> snapshot;
    for (const worker::NamedTensor& weight : weights[m])
      snapshot.push_back(*worker::ToWire(weight.name, weight.tensor));
    ASSERT_TRUE((*evaluator)->SubmitSnapshot(job, ModuleIndex(m), 1, 1, std::move(snapshot)).ok());
    EXPECT_NEAR(reading(m), 0, 1e-10) << modules[m].name();
    at::NoGradGuard no_gradients;
    for (const worker::NamedTensor& parameter : modules[m].parameters()) {
      parameter.tensor.add_(at::randn_like(parameter.tensor), 0.1);
    }
    EXPECT_GT(reading(m), 1e-6) << modules[m].name();
  }
}

TEST(TraceGraph, LeavesModesGradientsAndRandomStateAlone) {
  const std::vector<LayerModule> modules = ModulesOf("digitsnet", 1);
  for (const LayerModule& module : modules) module.SetTraining(true);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  ASSERT_TRUE(TraceModule(modules[0], at::zeros({2, 1, 8, 8})).ok());
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  for (const auto& parameter : modules[0].parameters()) EXPECT_TRUE(parameter.tensor.requires_grad());
  for (const auto& submodule : modules[0].blocks()[0]->modules()) EXPECT_TRUE(submodule->is_training());
}

TEST(TraceGraph, RefusesABakedInBatchSize) {
  EXPECT_THAT(ErrorOf(ModuleOf([](const at::Tensor& x) { return at::add(x, static_cast<double>(x.size(0))); }),
                      at::zeros({4, 3})),
              HasSubstr("another batch size"));
  EXPECT_THAT(ErrorOf(ModuleOf([](const at::Tensor& x) { return x.view({x.size(0), 3, 1}); }), at::zeros({4, 3})),
              HasSubstr("[CANNOT_TRACE]"));
}

TEST(TraceGraph, WritesInPlaceOperatorsOutOfPlace) {
  const auto traced =
      TraceModule(ModuleOf([](const at::Tensor& x) { return at::add(x, x).relu_(); }), at::zeros({4, 3}));
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(traced->graph.nodes.back().op, "aten::relu");
}

TEST(TraceGraph, DropsDropout) {
  const auto traced = TraceModule(ModuleOf([](const at::Tensor& x) { return at::relu(at::dropout(x, 0.5, false)); }),
                                  at::zeros({4, 3}));
  ASSERT_TRUE(traced.ok()) << traced.status();
  ASSERT_EQ(traced->graph.nodes.size(), 1u);
  EXPECT_EQ(traced->graph.nodes[0].op, "aten::relu");
}

TEST(TraceGraph, SaysWhichOperatorOrConstantItHasNoWordsFor) {
  EXPECT_THAT(ErrorOf(ModuleOf([](const at::Tensor& x) { return at::special_bessel_j0(x); }), at::zeros({4, 3})),
              HasSubstr("[UNKNOWN_OP]"));
  const at::Tensor stray = at::ones({3});
  EXPECT_THAT(ErrorOf(ModuleOf([stray](const at::Tensor& x) { return at::mul(x, stray); }), at::zeros({4, 3})),
              HasSubstr("neither parameter nor buffer"));
  EXPECT_THAT(ErrorOf(ModuleOf([](const at::Tensor& x) -> at::Tensor { throw std::runtime_error("broken"); }),
                      at::zeros({4, 3})),
              HasSubstr("broken"));
}

TEST(Models, HaveThePublishedNumberOfParameters) {
  auto parameters = [](const char* model) {
    int64_t count = 0;
    for (const LayerModule& module : ModulesOf(model, 3)) count += module.parameter_count();
    return count;
  };
  // 0.27 M and 0.85 M, and 2,560 + 192 more for the convolutions of two shortcuts.
  EXPECT_EQ(parameters("resnet20"), 269'722 + 2'752);
  EXPECT_EQ(parameters("resnet56"), 853'018 + 2'752);
  EXPECT_FALSE(MakeModel("vgg", 3, 10).ok());
}

}  // namespace
}  // namespace egeria::trainer
