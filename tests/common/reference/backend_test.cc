#include "common/reference/backend.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "common/plasticity/sp_loss.h"
#include "common/reference/lowering.h"
#include "common/reference/quantize.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "tests/support/bfloat16.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using testing::SampleModule;
using testing::Spelling;

constexpr int64_t kBatch = 16;

// With one thread, as the evaluator: with more, oneDNN's strided 8-bit 1x1 convolutions are wrong at times on
// processors that have AVX2 and no VNNI.
void Begin(uint64_t seed) {
  at::set_num_threads(1);
  at::manual_seed(seed);
}

at::Tensor RandomInput(const SampleModule& module, int64_t batch, float scale = 1) {
  const c10::InferenceMode inference;
  std::vector<int64_t> shape = module.input_shape;
  shape.insert(shape.begin(), batch);
  return at::randn(shape) * scale;
}

std::shared_ptr<ReferenceModule> Load(const SampleModule& module) {
  auto reference = ReferenceModule::Create(module.graph);
  EXPECT_TRUE(reference.ok()) << reference.status();
  (*reference)->SetWeights(module.weights);
  return *std::move(reference);
}

double SpLoss(const at::Tensor& a, const at::Tensor& b) {
  const c10::InferenceMode inference;
  const at::Tensor ga = GramMatrix(a), gb = GramMatrix(b);
  const auto span = [](const at::Tensor& gram) {
    return std::span<const float>(gram.const_data_ptr<float>(), static_cast<size_t>(gram.numel()));
  };
  const auto loss = plasticity::SpLoss(span(ga), span(gb), a.size(0));
  EXPECT_TRUE(loss.ok()) << loss.status();
  return loss.value_or(1e9);
}

double RelativeError(const at::Tensor& found, const at::Tensor& expected) {
  const c10::InferenceMode inference;
  EXPECT_EQ(found.sizes(), expected.sizes());
  return (found - expected).norm().item<double>() / expected.norm().item<double>();
}

// SP loss of the backend against the baseline on a batch that it was not calibrated with.
double Noise(const SampleModule& module, const Backend& backend) {
  Begin(3);
  const auto reference = Load(module);
  EXPECT_TRUE(reference->Calibrate({RandomInput(module, kBatch)}).ok());
  const at::Tensor input = RandomInput(module, kBatch);
  const auto baseline = reference->Run(*MakeAtenBackend(), {input});
  EXPECT_TRUE(baseline.ok()) << baseline.status();
  const auto output = reference->Run(backend, {input});
  if (testing::LacksBfloat16(output.status().message())) return 0;
  EXPECT_TRUE(output.ok()) << backend.name() << ": " << output.status();
  if (!baseline.ok() || !output.ok()) return 1e9;
  EXPECT_EQ((*output)[0].scalar_type(), at::kFloat);
  EXPECT_EQ((*output)[0].sizes(), (*baseline)[0].sizes());
  const double noise = SpLoss((*output)[0], (*baseline)[0]);
  return noise;
}

struct NoiseBound {
  const char* what;
  std::function<SampleModule()> module;
  // Signals between snapshots some dozens of iterations apart lie between 3e-5 and 8e-4 for one module.
  double prepacked, bf16, int8, int8_float_residual;
};

class BackendNoise : public ::testing::TestWithParam<NoiseBound> {};

TEST_P(BackendNoise, StaysUnderItsBound) {
  const SampleModule module = GetParam().module();
  EXPECT_LE(Noise(module, *MakeAtenBackend()), 0.0);
  EXPECT_LE(Noise(module, *MakePrepackedBackend()), GetParam().prepacked);
  EXPECT_LE(Noise(module, *MakeBfloat16Backend()), GetParam().bf16);
  EXPECT_LE(Noise(module, *MakeInt8Backend(false)), GetParam().int8);
  EXPECT_LE(Noise(module, *MakeInt8Backend(true)), GetParam().int8_float_residual);
}

INSTANTIATE_TEST_SUITE_P(
    Modules, BackendNoise,
    ::testing::Values(
        NoiseBound{"BasicBlock", [] { return testing::BasicBlock(16, 16); }, 1e-12, 2e-8, 5e-7, 5e-7},
        NoiseBound{"TracedBasicBlock", [] { return testing::BasicBlock(16, 16, Spelling::kTraced); }, 1e-12, 2e-8, 5e-7,
                   5e-7},
        NoiseBound{"Mlp", [] { return testing::Mlp(128); }, 1e-12, 2e-6, 5e-5, 5e-5},
        NoiseBound{"InvertedResidual", [] { return testing::InvertedResidual(); }, 1e-12, 5e-8, 5e-6, 5e-6},
        NoiseBound{"Bottleneck", [] { return testing::Bottleneck(); }, 1e-12, 2e-9, 2e-8, 2e-8},
        NoiseBound{"ResNet56LastStage", [] { return testing::ResNet56LastStage(); }, 1e-12, 5e-8, 1e-6, 1e-6},
        NoiseBound{"BertLayer", [] { return testing::BertLayer(16); }, 1e-12, 1e-7, 2e-6, 2e-6}),
    [](const auto& info) { return info.param.what; });

// Graphs whose fused form is easy to get wrong.
class Lowering : public ::testing::Test {
 protected:
  // Every optimised backend's outputs lie near the baseline's; returns how many groups were found.
  static size_t ExpectSameResults(const SampleModule& module) {
    Begin(4);
    const auto reference = Load(module);
    const at::Tensor input = RandomInput(module, kBatch);
    const auto expected = reference->Calibrate({input});
    EXPECT_TRUE(expected.ok()) << expected.status();
    if (!expected.ok()) return 0;
    const auto backends = MakeBackends({"prepacked", "bf16", "int8"});
    for (const auto& backend : *backends) {
      // Twice: a program must not eat its own weights or inputs.
      for (int run = 0; run < 2; ++run) {
        const auto outputs = reference->Run(*backend, {input});
        if (testing::LacksBfloat16(outputs.status().message())) continue;
        EXPECT_TRUE(outputs.ok()) << backend->name() << " " << outputs.status();
        if (!outputs.ok()) continue;
        const double tolerance = backend->family() == "prepacked" ? 1e-5 : 0.05;
        for (size_t i = 0; i < expected->size(); ++i) {
          EXPECT_LE(RelativeError((*outputs)[i], (*expected)[i]), tolerance)
              << module.name << ", " << backend->name() << ", output " << i;
        }
      }
    }
    return Lower(*Bind(module.graph)).fused;
  }
};

TEST_F(Lowering, FusesABlockIntoItsTwoConvolutions) {
  EXPECT_EQ(ExpectSameResults(testing::BasicBlock(8, 8)), 2u);
  const LoweredGraph lowered = Lower(*Bind(testing::BasicBlock(8, 8).graph));
  ASSERT_EQ(lowered.items.size(), 2u);
  const auto& second = std::get<FusedGroup>(lowered.items[1]);
  EXPECT_TRUE(second.batch_norm.has_value());
  EXPECT_EQ(second.residual, lowered.graph->inputs[0]);
  EXPECT_EQ(second.activation, Activation::kRelu);
}

TEST_F(Lowering, KeepsAResidualThatIsReadAgainLater) {
  testing::GraphBuilder builder("residual_read_again", {8, 8, 8}, 1, Spelling::kExported);
  const std::string x = builder.Relu(builder.Convolution(builder.input(), 8, 8, 3, 1));
  const std::string y = builder.Relu(builder.Add(builder.Convolution(x, 8, 8, 3, 1), x));
  EXPECT_EQ(ExpectSameResults(builder.Finish(builder.Add(builder.Convolution(y, 8, 8, 3, 1), x))), 3u);
}

TEST_F(Lowering, KeepsAResidualOfWhichAViewLives) {
  testing::GraphBuilder builder("view_of_residual", {8, 8, 8}, 1, Spelling::kExported);
  const std::string x = builder.Relu(builder.Convolution(builder.input(), 8, 8, 3, 1));
  const std::string view = builder.Node(
      "aten::slice", "Tensor", {testing::Ref(x), testing::Int(1), testing::Int(0), testing::Int(4), testing::Int(1)});
  const std::string sum = builder.Relu(builder.Add(builder.Convolution(builder.input(), 8, 8, 3, 1), x));
  EXPECT_EQ(ExpectSameResults(builder.Finish(builder.Node(
                "aten::cat", "",
                {graph::Argument{graph::ArgumentList{testing::Ref(view), testing::Ref(sum)}}, testing::Int(1)}))),
            2u);
}

TEST_F(Lowering, KeepsTheModulesOwnInput) {
  testing::GraphBuilder builder("input_is_residual", {8, 8, 8}, 1, Spelling::kExported);
  ExpectSameResults(builder.Finish(builder.Add(builder.Convolution(builder.input(), 8, 8, 3, 1), builder.input())));
}

TEST_F(Lowering, AddsTwoConvolutionsOfWhichTheSecondComesLater) {
  testing::GraphBuilder builder("projection", {8, 8, 8}, 1, Spelling::kExported);
  const std::string main = builder.BatchNorm(builder.Convolution(builder.input(), 8, 16, 3, 2), 16);
  const std::string shortcut = builder.BatchNorm(builder.Convolution(builder.input(), 8, 16, 1, 2), 16);
  EXPECT_EQ(ExpectSameResults(builder.Finish(builder.Relu(builder.Add(main, shortcut)))), 2u);
}

TEST_F(Lowering, DoesNotFuseAcrossAValueThatIsAlsoAnOutput) {
  testing::GraphBuilder builder("two_outputs", {8, 8, 8}, 1, Spelling::kExported);
  const std::string convolved = builder.Convolution(builder.input(), 8, 8, 3, 1);
  SampleModule module = builder.Finish(builder.Relu(convolved));
  module.graph.outputs.push_back(convolved);
  EXPECT_EQ(ExpectSameResults(module), 1u);
}

TEST_F(Lowering, ViewsWhatFusedConvolutionsLeaveInAnotherLayout) {
  testing::GraphBuilder builder("view_after_convolution", {8, 8, 8}, 1, Spelling::kExported);
  const std::string y = builder.Relu(builder.Convolution(builder.input(), 8, 8, 3, 1));
  const std::string flat = builder.Node("aten::view", "", {testing::Ref(y), testing::Ints({-1, 512})});
  EXPECT_EQ(ExpectSameResults(builder.Finish(builder.Linear(flat, 512, 10))), 2u);
}

TEST_F(Lowering, LeavesGroupedAndTransposedConvolutionsRight) {
  testing::GraphBuilder builder("grouped", {8, 8, 8}, 1, Spelling::kExported);
  const std::string y = builder.Relu(builder.BatchNorm(builder.Convolution(builder.input(), 8, 16, 3, 1, 4), 16));
  const std::string weight = builder.Weight({16, 8, 2, 2}, 0.2f);
  EXPECT_EQ(ExpectSameResults(builder.Finish(builder.Node(
                "aten::convolution", "",
                {testing::Ref(y), testing::Ref(weight), testing::None(), testing::Ints({2, 2}), testing::Ints({0, 0}),
                 testing::Ints({1, 1}), testing::Bool(true), testing::Ints({0, 0}), testing::Int(1)}))),
            1u);
}

TEST(Backends, RefuseAModuleInWhichNothingCanBeFused) {
  testing::GraphBuilder builder("plain", {8}, 1, Spelling::kExported);
  const auto reference = Load(builder.Finish(builder.Relu(builder.input())));
  const at::Tensor input = at::randn({4, 8});
  EXPECT_EQ(reference->Run(*MakePrepackedBackend(), {input}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(reference->Run(*MakeAtenBackend(), {input}).ok());
}

TEST(Backends, RefuseEightBitsBeforeCalibration) {
  const auto reference = Load(testing::BasicBlock(8, 8));
  EXPECT_FALSE(reference->Run(*MakeInt8Backend(true), {RandomInput(testing::BasicBlock(8, 8), 4)}).ok());
}

TEST(Backends, CountSaturatedValues) {
  const SampleModule module = testing::BasicBlock(8, 8);
  const auto reference = Load(module);
  ASSERT_TRUE(reference->Calibrate({RandomInput(module, 4)}).ok());
  const auto backend = MakeInt8Backend(false);
  ASSERT_TRUE(reference->Run(*backend, {RandomInput(module, 4)}).ok());
  EXPECT_LT(reference->saturated_share(), 1e-3);
  ASSERT_TRUE(reference->Run(*backend, {RandomInput(module, 4, 10)}).ok());
  EXPECT_GT(reference->saturated_share(), 0.05);
}

// The zero of inputs below zero is at 255, so that bytes and weights are large, and of one sign.
TEST(Backends, SumLargeProductsWithoutOverflow) {
  constexpr int64_t kWidth = 64;
  testing::GraphBuilder builder("linear", {kWidth}, 1, Spelling::kExported);
  const std::string weight = builder.Weight({kWidth, kWidth}, 0.001f, 1);
  const SampleModule module =
      builder.Finish(builder.Node("aten::linear", "", {testing::Ref(builder.input()), testing::Ref(weight)}));
  Begin(6);
  const auto reference = Load(module);
  const c10::InferenceMode inference;
  const at::Tensor input = -at::abs(RandomInput(module, kBatch));
  const auto expected = reference->Calibrate({input});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto output = reference->Run(*MakeInt8Backend(false), {input});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_LE(RelativeError((*output)[0], (*expected)[0]), 0.02);
}

TEST(Backends, AreMadeByName) {
  EXPECT_EQ(MakeBackends({"int8", "bf16", "prepacked", "aten"})->size(), 5u);
  EXPECT_EQ(MakeBackends({"int4"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GramMatrix, DoesNotDependOnTheMemoryLayout) {
  const at::Tensor x = at::randn({4, 6, 5, 3});
  const at::Tensor plain = GramMatrix(x), last = GramMatrix(x.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::allclose(plain, last, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(plain, GramMatrix(x.transpose(1, 3)), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(plain, x.flatten(1).mm(x.flatten(1).t()), 1e-5, 1e-5));
  EXPECT_EQ(GramMatrix(at::randn({4})).sizes(), at::IntArrayRef({4, 4}));
}

TEST(Quantize, RoundsToTheNearestAndCountsWhatItClips) {
  const QuantizationParameters parameters = ChooseParameters({-1, 3}, 1);
  EXPECT_NEAR(parameters.scale, 4.0 / 255, 1e-9);
  EXPECT_EQ(parameters.zero_point, 64);
  const at::Tensor x = at::randn({3, 1001}).mul(2);
  SaturationCount count;
  const at::Tensor back = Dequantize(Quantize(x, parameters, &count), parameters);
  const double low = -64 * parameters.scale, high = (255 - 64) * parameters.scale;
  EXPECT_LE((back - x.clamp(low, high)).abs().max().item<double>(), parameters.scale * 0.5001);
  EXPECT_EQ(count.elements, 3003);
  const int64_t beyond = ((x / parameters.scale).round() < -64).sum().item<int64_t>() +
                         ((x / parameters.scale).round() > 191).sum().item<int64_t>();
  EXPECT_NEAR(static_cast<double>(count.saturated), static_cast<double>(beyond), 3);
}

TEST(Quantize, TakesWhatIsNotFiniteAsAnEnd) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::ones({3}).mul(at::ones({3}));
  x[0] = inf, x[1] = -inf, x[2] = std::nanf("");
  SaturationCount count;
  const at::Tensor bytes = Quantize(x, ChooseParameters({-1, 1}, 1), &count);
  EXPECT_EQ(bytes[0].item<int>(), 255);
  EXPECT_EQ(bytes[1].item<int>(), 0);
  EXPECT_EQ(bytes[2].item<int>(), 0);
}

}  // namespace
}  // namespace egeria::reference
