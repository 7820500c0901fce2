#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "common/reference/reference_chain.h"
#include "common/reference/tensor_bridge.h"
#include "tests/support/bfloat16.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using ::testing::AnyOf;
using testing::SampleModule;

// A training model that drifts from the reference's weights by a set amount.
class ReferenceChainTest : public ::testing::Test {
 protected:
  ReferenceChainTest() : backends_(*MakeBackends({"int8", "bf16", "prepacked", "aten"})) {
    at::manual_seed(2);
    reference_ = *ReferenceModule::Create(module_.graph);
    reference_->SetWeights(module_.weights);
    training_ = *ReferenceModule::Create(module_.graph);
  }

  // A reading of a fresh batch against training weights that differ by `drift` of their size.
  absl::StatusOr<ChainReading> Read(ReferenceChain& chain, float drift) {
    const c10::InferenceMode inference;
    std::vector<WireTensor> weights = module_.weights;
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (WireTensor& weight : weights) {
      std::vector<float> values(weight.size() / sizeof(float));
      const auto* data = reinterpret_cast<const float*>(weight.data());
      for (size_t i = 0; i < values.size(); ++i) values[i] = data[i] * (1 + drift * normal(random));
      weight = MakeWireTensor(weight.spec, values.data());
    }
    training_->SetWeights(weights);
    const at::Tensor input = at::randn({8, 16, 12, 12});
    const auto output = training_->Run(*MakeAtenBackend(), {input});
    if (!output.ok()) return output.status();
    const at::Tensor gram = GramMatrix((*output)[0]);
    return chain.Evaluate({input}, {gram.const_data_ptr<float>(), static_cast<size_t>(gram.numel())}, 8);
  }

  const SampleModule module_ = testing::BasicBlock(16, 12);
  std::shared_ptr<ReferenceModule> reference_, training_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

TEST_F(ReferenceChainTest, ReadsTheFirstSampleThroughTheBaselineAndMeasuresAll) {
  ReferenceChain chain({reference_}, &backends_);
  const auto reading = Read(chain, 0.1f);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->family, "aten");
  EXPECT_GT(reading->plasticity, 1e-6);
  ASSERT_EQ(chain.selector().measurements().size(), 5u);
  for (const BackendMeasurement& measurement : chain.selector().measurements()) {
    if (testing::LacksBfloat16(measurement.refusal)) continue;
    EXPECT_EQ(measurement.refusal, "") << measurement.name;
    EXPECT_GT(measurement.seconds, 0) << measurement.name;
  }
}

TEST_F(ReferenceChainTest, UsesNoBackendWhoseNoiseIsNotWellUnderTheSignal) {
  ReferenceChain chain({reference_}, &backends_);
  for (int i = 0; i < 12; ++i) {
    const auto reading = Read(chain, 1e-5f);  // far under 8 bits' noise
    ASSERT_TRUE(reading.ok()) << reading.status();
    EXPECT_THAT(reading->family, AnyOf("prepacked", "aten")) << i;
  }
}

TEST_F(ReferenceChainTest, ChoosesAmongAllBackendsUnderAStrongSignal) {
  ReferenceChain chain({reference_}, &backends_);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Read(chain, 0.2f).ok());
  const std::string chosen = chain.selector().Choose();
  for (const BackendMeasurement& measurement : chain.selector().measurements()) {
    EXPECT_LE(measurement.noise, 0.1 * *chain.selector().MedianSignal()) << measurement.name;
  }
  const auto reading = Read(chain, 0.2f);
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(reading->family, chosen.substr(0, chosen.find('/')));
}

TEST_F(ReferenceChainTest, ReadsThroughTheBaselineAgainAfterASnapshot) {
  ReferenceChain chain({reference_}, &backends_);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Read(chain, 0.2f).ok());
  reference_->SetWeights(module_.weights);
  chain.WeightsChanged();
  EXPECT_EQ(Read(chain, 0.2f)->family, "aten");
}

// Refuses every module, as one whose operators are missing from this build of torch.
class MissingBackend final : public Backend {
 public:
  const std::string& name() const override { return name_; }
  const std::string& family() const override { return name_; }
  absl::StatusOr<Program> Pack(const PackInput&) const override { return absl::UnimplementedError("not here"); }

 private:
  const std::string name_ = "missing";
};

// The baseline, claiming to be another; fails from the fourth run on.
class FailingBackend final : public Backend {
 public:
  const std::string& name() const override { return name_; }
  const std::string& family() const override { return name_; }
  absl::StatusOr<Program> Pack(const PackInput& input) const override {
    Program program;
    program.inputs = {program.AddSlot()};
    program.outputs = program.inputs;
    auto runs = std::make_shared<int>(0);
    const auto inner = std::make_shared<Program>(*MakeAtenBackend()->Pack(input));
    program.steps.push_back(
        {.label = "failing", .reads = program.inputs, .writes = program.inputs, .run = [runs, inner](Frame& frame) {
           TORCH_CHECK(++*runs <= 3, "worn out");
           frame[0] = (*RunProgram(*inner, {frame[0].toTensor()}, {}))[0];
         }});
    program.FindDeadValues();
    return program;
  }

 private:
  const std::string name_ = "failing";
};

TEST_F(ReferenceChainTest, FallsBackWhereABackendIsMissing) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<MissingBackend>());
  ReferenceChain chain({reference_}, &backends);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Read(chain, 0.2f)->family, "aten");
  EXPECT_EQ(chain.selector().measurements()[0].refusal, "not here");
}

TEST_F(ReferenceChainTest, FallsBackWhereABackendFailsLater) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<FailingBackend>());
  ReferenceChain chain({reference_}, &backends);
  for (int i = 0; i < 8; ++i) {
    const auto reading = Read(chain, 0.2f);
    ASSERT_TRUE(reading.ok()) << reading.status();
  }
  EXPECT_EQ(chain.selector().Choose(), "aten");
}

TEST_F(ReferenceChainTest, MeasuresTheNormOfTheOutputsThemselves) {
  const c10::InferenceMode inference;
  ReferenceChain chain({reference_}, &backends_, plasticity::ActivationMetric::kActivationNorm);
  const at::Tensor input = at::randn({8, 16, 12, 12});
  const at::Tensor own = (*reference_->Run(*MakeAtenBackend(), {input}))[0].contiguous();
  for (const double scale : {1.0, 1.5, 1.5}) {  // the first through the baseline
    const at::Tensor training = (own * scale).contiguous();
    const auto reading =
        chain.Evaluate({input}, {training.const_data_ptr<float>(), static_cast<size_t>(training.numel())}, 8);
    ASSERT_TRUE(reading.ok()) << reading.status();
    EXPECT_NEAR(reading->plasticity, scale - 1, 0.05) << "8 bits are as exact as that";
  }
  const auto cut = chain.Evaluate({input}, {own.const_data_ptr<float>(), 8 * 16}, 8);
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument) << cut.status();
}

TEST_F(ReferenceChainTest, RefusesAnOutputOfAnotherBatch) {
  testing::GraphBuilder builder("transposed", {8}, 1, testing::Spelling::kExported);
  const SampleModule module = builder.Finish(builder.Node("aten::t", "", {testing::Ref(builder.input())}));
  const auto reference = *ReferenceModule::Create(module.graph);
  reference->SetWeights(module.weights);
  ReferenceChain chain({reference}, &backends_);
  const std::vector<float> gram(9, 1);
  const auto reading = chain.Evaluate({at::randn({3, 8})}, gram, 3);
  EXPECT_EQ(reading.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace egeria::reference
