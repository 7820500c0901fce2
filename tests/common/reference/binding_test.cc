#include "common/reference/binding.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/_native_batch_norm_legit_no_training.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/split.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/reference/backend.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using graph::Argument;
using graph::ArgumentList;
using graph::ModuleGraph;
using testing::Bool;
using testing::Float;
using ::testing::HasSubstr;
using testing::Int;
using testing::Ints;
using testing::None;
using testing::Ref;
using ::testing::StartsWith;
using testing::Text;

Argument List(std::vector<Argument> items) { return Argument{ArgumentList(std::move(items))}; }

ModuleGraph GraphOf(std::vector<graph::Node> nodes, std::vector<int64_t> input_shape = {-1, 6},
                    DataType dtype = DataType::kFloat32) {
  const std::string output = nodes.back().outputs[0];
  return {.inputs = {{"x", dtype, std::move(input_shape)}}, .nodes = std::move(nodes), .outputs = {output}};
}

absl::StatusOr<at::Tensor> RunGraph(const ModuleGraph& graph, std::vector<at::Tensor> inputs,
                                    const RunLimits& limits = {}) {
  EGERIA_ASSIGN_OR_RETURN(const auto module, ReferenceModule::Create(graph, limits));
  module->SetWeights({});
  EGERIA_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs, module->Run(*MakeAtenBackend(), inputs));
  return outputs[0];
}

void ExpectEqual(const absl::StatusOr<at::Tensor>& result, const at::Tensor& expected) {
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(*result, expected));
}

void ExpectNamed(const absl::Status& status, absl::StatusCode code, const std::string& name) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("[" + name + "]"));
}

class Interpreter : public ::testing::Test {
 protected:
  Interpreter() { at::manual_seed(1); }
  const c10::InferenceMode inference_;
};

TEST(Allowlist, HoldsOnlyOperatorsOfThisTorchThatWriteToNothing) {
  for (const absl::string_view full : graph::AllowedOperators()) {
    const size_t dot = full.find('.');
    const std::string name(full.substr(0, dot));
    const std::string overload(dot == absl::string_view::npos ? absl::string_view() : full.substr(dot + 1));
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    ASSERT_TRUE(op.has_value()) << full;
    EXPECT_FALSE(op->schema().is_mutable()) << full;
  }
}

TEST_F(Interpreter, RunsAResidualBlockBitForBitLikeDirectCalls) {
  const testing::SampleModule module = testing::BasicBlock(8, 9);
  std::vector<at::Tensor> w;
  for (const WireTensor& weight : module.weights) w.push_back(ToTensor(weight));
  const at::Tensor x = at::randn({5, 8, 9, 9});
  const auto norm = [&](const at::Tensor& y, int first) {
    return std::get<0>(
        at::_native_batch_norm_legit_no_training(y, w[first], w[first + 1], w[first + 2], w[first + 3], 0.1, 1e-5));
  };
  at::Tensor y = at::relu(norm(at::conv2d(x, w[0], {}, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1}), 1));
  y = norm(at::conv2d(y, w[5], {}, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1}), 6);
  const at::Tensor expected = at::relu(at::add(y, x));

  auto reference = ReferenceModule::Create(module.graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  (*reference)->SetWeights(module.weights);
  const auto outputs = (*reference)->Run(*MakeAtenBackend(), {x});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_TRUE(at::equal((*outputs)[0], expected));
}

TEST_F(Interpreter, RunsTheTracersSpellingLikeDirectCalls) {
  const testing::SampleModule module = testing::BasicBlock(4, 5, testing::Spelling::kTraced);
  std::vector<at::Tensor> w;
  for (const WireTensor& weight : module.weights) w.push_back(ToTensor(weight));
  const at::Tensor x = at::randn({3, 4, 5, 5});
  const auto convolve = [](const at::Tensor& y, const at::Tensor& weight) {
    return at::_convolution(y, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false, false, true, true);
  };
  const auto norm = [&](const at::Tensor& y, int first) {
    return at::batch_norm(y, w[first], w[first + 1], w[first + 2], w[first + 3], false, 0.1, 1e-5, true);
  };
  const at::Tensor y = norm(convolve(at::relu(norm(convolve(x, w[0]), 1)), w[5]), 6);
  auto reference = ReferenceModule::Create(module.graph);
  ASSERT_TRUE(reference.ok()) << reference.status();
  (*reference)->SetWeights(module.weights);
  const auto outputs = (*reference)->Run(*MakeAtenBackend(), {x});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_TRUE(at::equal((*outputs)[0], at::relu(y + x)));
}

TEST_F(Interpreter, RunsLinearAndGelu) {
  std::mt19937_64 random(5);
  const WireTensor weight = testing::RandomTensor("w", {4, 6}, random), bias = testing::RandomTensor("b", {4}, random);
  ModuleGraph graph = GraphOf({{"aten::linear", "", {Ref("x"), Ref("w")}, {{"bias", Ref("b")}}, {"y"}},
                               {"aten::gelu", "", {Ref("y")}, {{"approximate", Text("tanh")}}, {"z"}}});
  graph.weights = {weight.spec, bias.spec};
  auto module = ReferenceModule::Create(graph);
  ASSERT_TRUE(module.ok()) << module.status();
  (*module)->SetWeights({weight, bias});
  const at::Tensor x = at::randn({3, 6});
  const auto outputs = (*module)->Run(*MakeAtenBackend(), {x});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_TRUE(at::equal((*outputs)[0], at::gelu(at::linear(x, ToTensor(weight), ToTensor(bias)), "tanh")));
}

TEST_F(Interpreter, NamesSeveralResultsOneByOne) {
  const at::Tensor x = at::randn({3, 6});
  const auto expected = at::native_layer_norm(x, {6}, {}, {}, 1e-5);
  const std::vector<Argument> args = {Ref("x"), Ints({6}), None(), None(), Float(1e-5)};
  ExpectEqual(RunGraph(GraphOf({{"aten::native_layer_norm", "", args, {}, {"y", "mean", "rstd"}},
                                {"aten::add", "Tensor", {Ref("y"), Ref("rstd")}, {}, {"z"}}}),
                       {x}),
              std::get<0>(expected) + std::get<2>(expected));
  // Trailing results that nobody uses may be omitted.
  ExpectEqual(RunGraph(GraphOf({{"aten::native_layer_norm", "", args, {}, {"y"}}}), {x}), std::get<0>(expected));
  // One name for all of them, taken apart.
  ExpectEqual(RunGraph(GraphOf({{"aten::native_layer_norm", "", args, {}, {"y"}},
                                {"egeria::getitem", "", {Ref("y"), Int(1)}, {}, {"mean"}},
                                {"egeria::getitem", "", {Ref("y"), Int(0)}, {}, {"norm"}},
                                {"aten::add", "Tensor", {Ref("norm"), Ref("mean")}, {}, {"z"}}}),
                       {x}),
              std::get<0>(expected) + std::get<1>(expected));
}

TEST_F(Interpreter, TakesListsApartAndBuildsThem) {
  const at::Tensor x = at::randn({3, 6});
  const std::vector<at::Tensor> parts = at::split(x, 2, 1);
  const at::Tensor expected = at::cat({parts[2], parts[0]}, 1);
  const graph::Node split{"aten::split", "Tensor", {Ref("x"), Int(2), Int(1)}, {}, {"parts"}};
  ExpectEqual(RunGraph(GraphOf({split,
                                {"egeria::getitem", "", {Ref("parts"), Int(-1)}, {}, {"last"}},
                                {"egeria::getitem", "", {Ref("parts"), Int(0)}, {}, {"first"}},
                                {"aten::cat", "", {List({Ref("last"), Ref("first")}), Int(1)}, {}, {"y"}}}),
                       {x}),
              expected);
  graph::Node named = split;
  named.outputs = {"a", "b", "c"};
  ExpectEqual(RunGraph(GraphOf({named, {"aten::cat", "", {List({Ref("c"), Ref("a")}), Int(1)}, {}, {"y"}}}), {x}),
              expected);
  // A list as it comes, and one with optional items.
  ExpectEqual(RunGraph(GraphOf({split, {"aten::cat", "", {Ref("parts"), Int(1)}, {}, {"y"}}}), {x}), x);
  ExpectEqual(RunGraph(GraphOf({{"aten::arange", "", {Int(3)}, {}, {"i"}},
                                {"aten::index", "Tensor", {Ref("x"), List({None(), Ref("i")})}, {}, {"y"}}}),
                       {x}),
              x.slice(1, 0, 3));
}

TEST_F(Interpreter, ComputesWithSizes) {
  const at::Tensor x = at::randn({4, 6});
  const auto sym = [](const char* op, Argument a, Argument b, const char* out) {
    return graph::Node{std::string("egeria::sym_") + op, "", {std::move(a), std::move(b)}, {}, {out}};
  };
  ExpectEqual(RunGraph(GraphOf({{"aten::sym_size", "int", {Ref("x"), Int(1)}, {}, {"n"}},
                                sym("floordiv", Ref("n"), Int(2), "half"),
                                sym("sub", Ref("n"), Ref("half"), "rest"),
                                sym("mul", Ref("rest"), Int(1), "same"),
                                sym("max", Ref("same"), Int(1), "width"),
                                {"aten::view", "", {Ref("x"), List({Int(-1), Int(2), Ref("width")})}, {}, {"y"}}}),
                       {x}),
              x.view({-1, 2, 3}));
  ExpectEqual(RunGraph(GraphOf({sym("floordiv", Int(-7), Int(2), "a"),
                                sym("mod", Int(-7), Int(3), "b"),
                                sym("add", Ref("a"), Ref("b"), "c"),
                                sym("min", Ref("c"), Int(5), "d"),
                                {"aten::mul", "Tensor", {Ref("x"), Ref("d")}, {}, {"y"}}}),
                       {x}),
              x * -2);  // -4 + 2
}

TEST_F(Interpreter, WrapsNumbersSoThatTheyDoNotPromoteTypes) {
  const at::Tensor x = at::arange(6).view({1, 6}).to(at::kInt);
  ExpectEqual(
      RunGraph(GraphOf({{"aten::add", "Tensor", {Ref("x"), Int(2)}, {}, {"y"}}}, {-1, 6}, DataType::kInt32), {x}),
      (x + 2).to(at::kInt));
  const at::Tensor half = at::randn({2, 6}).to(at::kBFloat16);
  ExpectEqual(
      RunGraph(GraphOf({{"aten::mul", "Tensor", {Ref("x"), Float(0.3)}, {}, {"y"}}}, {-1, 6}, DataType::kBFloat16),
               {half}),
      half * 0.3);
}

TEST_F(Interpreter, TakesElementTypesDevicesLayoutsAndMemoryFormats) {
  const at::Tensor x = at::randn({2, 6});
  ExpectEqual(RunGraph(GraphOf({{"aten::ones",
                                 "",
                                 {Ints({2, 6})},
                                 {{"dtype", Argument{DataType::kFloat64}},
                                  {"device", Text("cpu")},
                                  {"layout", Int(0)},
                                  {"pin_memory", Bool(false)}},
                                 {"ones"}},
                                {"aten::clone", "", {Ref("ones")}, {{"memory_format", Int(0)}}, {"y"}}}),
                       {x}),
              at::ones({2, 6}, at::kDouble));
}

TEST_F(Interpreter, SkipsNodesThatNameNoResult) {
  const at::Tensor x = at::randn({2, 6});
  ExpectEqual(RunGraph(GraphOf({{"aten::_assert_tensor_metadata", "", {Ref("x"), Ints({9, 9})}, {}, {}},
                                {"aten::relu", "", {Ref("x")}, {}, {"y"}}}),
                       {x}),
              at::relu(x));
}

TEST(Bind, RefusesArgumentsThatTheSchemaDoesNotTake) {
  const std::vector<graph::Node> bad = {
      {"aten::relu", "", {Int(1), Int(2)}, {}, {"y"}},                // too many
      {"aten::relu", "", {}, {}, {"y"}},                              // missing
      {"aten::relu", "", {Ref("x")}, {{"nonsense", Int(1)}}, {"y"}},  // unknown keyword
      {"aten::relu", "", {Ref("x")}, {{"self", Ref("x")}}, {"y"}},    // twice
      {"aten::relu", "", {Text("x")}, {}, {"y"}},                     // wrong kind
      {"aten::relu", "", {None()}, {}, {"y"}},                        // not optional
      {"aten::relu", "", {Ref("x")}, {}, {"y", "z"}},                 // more names than results
      {"aten::native_layer_norm", "", {Ref("x"), Ints({6}), None(), None(), Float(1)}, {}, {"y", "a", "b", "c"}},
      {"aten::softmax", "int", {Ref("x"), Float(1)}, {}, {"y"}},               // float for int
      {"aten::softmax", "int", {Ref("x"), Bool(true)}, {}, {"y"}},             // boolean for int
      {"aten::softmax", "int", {Ref("x"), Int(1), Text("float")}, {}, {"y"}},  // not an element type
      {"aten::cat", "", {List({Text("x")}), Int(0)}, {}, {"y"}},               // item of the wrong kind
      {"aten::permute", "", {Ref("x"), List({Ref("x")})}, {}, {"y"}},
      {"aten::clone", "", {Ref("x")}, {{"memory_format", Int(17)}}, {"y"}},
      {"aten::ones", "", {Ints({2})}, {{"device", Text("cuda")}}, {"y"}},
      {"aten::ones", "", {Ints({2})}, {{"layout", Int(1)}}, {"y"}},
      {"aten::ones", "", {Ints({2})}, {{"pin_memory", Bool(true)}}, {"y"}},
      {"aten::dropout", "", {Ref("x"), Float(0.5), Bool(true)}, {}, {"y"}},  // random
      {"aten::scaled_dot_product_attention", "", {Ref("x"), Ref("x"), Ref("x"), None(), Float(0.1)}, {}, {"y"}},
      {"aten::batch_norm",
       "",
       {Ref("x"), None(), None(), None(), None(), Bool(true), Float(0.1), Float(1e-5), Bool(true)},
       {},
       {"y"}},
      {"egeria::getitem", "", {Ref("x"), Int(0)}, {}, {"y"}},  // no list
      {"egeria::sym_add", "", {Int(1)}, {}, {"y"}},
      {"egeria::sym_add", "", {Ref("x"), Int(1)}, {}, {"y"}},
      {"aten::sym_size", "int", {Ref("x"), Int(0)}, {}, {"y"}},  // an output that is no tensor
      {"aten::split", "Tensor", {Ref("x"), Int(2), Int(1)}, {}, {"y"}},
  };
  for (const graph::Node& node : bad) {
    const auto bound = Bind(GraphOf({node}));
    EXPECT_EQ(bound.status().code(), absl::StatusCode::kInvalidArgument) << node.op << " " << bound.status();
    const std::string message(bound.status().message());
    EXPECT_THAT(message, StartsWith("[BAD_ARGUMENT]")) << node.op;
    EXPECT_EQ(message.rfind("[BAD_ARGUMENT]"), 0) << message;  // once
  }
}

TEST(Bind, RefusesWhatValidationRefuses) {
  EXPECT_THAT(std::string(Bind(GraphOf({{"aten::relu_", "", {Ref("x")}, {}, {"y"}}})).status().message()),
              HasSubstr("[UNKNOWN_OP]"));
  EXPECT_THAT(std::string(Bind(GraphOf({{"aten::relu", "", {Ref("y")}, {}, {"y"}}})).status().message()),
              HasSubstr("[UNDEFINED_VALUE]"));
}

TEST_F(Interpreter, ReportsWhatAnOperatorThrows) {
  const at::Tensor x = at::randn({2, 6});
  ExpectNamed(RunGraph(GraphOf({{"aten::view", "", {Ref("x"), Ints({5, 5})}, {}, {"y"}}}), {x}).status(),
              absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(RunGraph(GraphOf({{"egeria::sym_floordiv", "", {Int(1), Int(0)}, {}, {"n"}},
                                {"aten::mul", "Tensor", {Ref("x"), Ref("n")}, {}, {"y"}}}),
                       {x})
                  .status(),
              absl::StatusCode::kInternal, "REFERENCE_FAILED");
  const int64_t most = std::numeric_limits<int64_t>::max();
  ExpectNamed(RunGraph(GraphOf({{"egeria::sym_mul", "", {Int(most), Int(2)}, {}, {"n"}},
                                {"aten::mul", "Tensor", {Ref("x"), Ref("n")}, {}, {"y"}}}),
                       {x})
                  .status(),
              absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(RunGraph(GraphOf({{"aten::split", "Tensor", {Ref("x"), Int(3), Int(1)}, {}, {"p"}},
                                {"egeria::getitem", "", {Ref("p"), Int(2)}, {}, {"y"}}}),
                       {x})
                  .status(),
              absl::StatusCode::kInternal, "REFERENCE_FAILED");
}

TEST_F(Interpreter, RefusesInputsThatDoNotFit) {
  const ModuleGraph graph = GraphOf({{"aten::relu", "", {Ref("x")}, {}, {"y"}}});
  ExpectNamed(RunGraph(graph, {}).status(), absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(RunGraph(graph, {at::ones({2, 5})}).status(), absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(RunGraph(graph, {at::ones({2, 6}, at::kDouble)}).status(), absl::StatusCode::kInternal,
              "REFERENCE_FAILED");
}

TEST_F(Interpreter, RefusesGraphsThatAskForTooMuch) {
  const at::Tensor x = at::ones({2, 6});
  const int64_t huge = int64_t{1} << 40;
  const std::vector<std::vector<graph::Node>> greedy = {
      {{"aten::zeros", "", {Ints({huge})}, {}, {"y"}}},
      {{"aten::arange", "", {Int(huge)}, {}, {"y"}}},
      {{"aten::full", "", {Ints({1 << 20, 1 << 20}), Float(1)}, {}, {"y"}}},
      {{"aten::constant_pad_nd", "", {Ref("x"), Ints({huge, huge})}, {}, {"y"}}},
      {{"aten::repeat", "", {Ref("x"), Ints({1 << 20, 1 << 20})}, {}, {"y"}}},
      // A view takes no memory, and yet the next operator would read it all.
      {{"aten::unsqueeze", "", {Ref("x"), Int(0)}, {}, {"u"}},
       {"aten::expand", "", {Ref("u"), Ints({huge, 2, 6})}, {}, {"e"}},
       {"aten::sum", "", {Ref("e")}, {}, {"y"}}},
      // Each fits, together they do not.
      {{"aten::ones", "", {Ints({1 << 19})}, {}, {"a"}},
       {"aten::ones", "", {Ints({1 << 19})}, {}, {"b"}},
       {"aten::ones", "", {Ints({1 << 19})}, {}, {"c"}},
       {"aten::cat", "", {List({Ref("a"), Ref("b"), Ref("c")})}, {}, {"y"}}},
      // An outer product.
      {{"aten::ones", "", {Ints({1 << 16, 1})}, {}, {"a"}},
       {"aten::ones", "", {Ints({1, 1 << 16})}, {}, {"b"}},
       {"aten::add", "Tensor", {Ref("a"), Ref("b")}, {}, {"y"}}},
      // A list.
      {{"aten::ones", "", {Ints({1 << 13})}, {}, {"a"}},
       {"aten::split", "Tensor", {Ref("a"), Int(1)}, {}, {"parts"}},
       {"aten::cat", "", {Ref("parts")}, {}, {"y"}}},
  };
  const RunLimits limits{.max_elements = 1 << 20, .max_bytes = 8 << 20};
  for (const auto& nodes : greedy) {
    ExpectNamed(RunGraph(GraphOf(nodes), {x}, limits).status(), absl::StatusCode::kResourceExhausted,
                "GRAPH_TOO_LARGE");
  }
}

TEST_F(Interpreter, RefusesListsThatAreTooLong) {
  const at::Tensor x = at::ones({2, 6});
  const graph::Node most{"aten::ones", "", {Ints({2, 4096})}, {}, {"a"}},
      more{"aten::ones", "", {Ints({2, 4097})}, {}, {"a"}}, none{"aten::ones", "", {Ints({2, 0})}, {}, {"a"}};
  const auto run = [&](const graph::Node& tensor, const char* op, const char* overload, std::vector<Argument> arguments,
                       std::map<std::string, Argument> keywords = {}) {
    return RunGraph(GraphOf({tensor,
                             {op, overload, std::move(arguments), std::move(keywords), {"list"}},
                             {"egeria::getitem", "", {Ref("list"), Int(0)}, {}, {"y"}}}),
                    {x})
        .status();
  };
  const auto too_large = [](const absl::Status& status) {
    ExpectNamed(status, absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE");
  };
  EXPECT_TRUE(run(more, "aten::unbind", "int", {Ref("a")}).ok());  // along the first dimension, of two
  EXPECT_TRUE(run(most, "aten::unbind", "int", {Ref("a"), Int(1)}).ok());
  too_large(run(more, "aten::unbind", "int", {Ref("a"), Int(1)}));
  too_large(run(more, "aten::unbind", "int", {Ref("a")}, {{"dim", Int(-1)}}));
  EXPECT_TRUE(run(more, "aten::chunk", "", {Ref("a"), Int(int64_t{1} << 28)}).ok());
  EXPECT_TRUE(run(more, "aten::chunk", "", {Ref("a"), Int(4096), Int(1)}).ok());
  EXPECT_TRUE(run(most, "aten::chunk", "", {Ref("a"), Int(int64_t{1} << 28), Int(1)}).ok());
  too_large(run(more, "aten::chunk", "", {Ref("a"), Int(4097), Int(1)}));
  too_large(run(more, "aten::chunk", "", {Ref("a"), Int(int64_t{1} << 40)}, {{"dim", Int(-1)}}));
  // A dimension of size 0 is the one that can be cut into any number of pieces.
  EXPECT_TRUE(run(none, "aten::chunk", "", {Ref("a"), Int(4096), Int(1)}).ok());
  too_large(run(none, "aten::chunk", "", {Ref("a"), Int(4097), Int(1)}));
  // The operator itself refuses a number that is no dimension.
  ExpectNamed(run(most, "aten::unbind", "int", {Ref("a"), Int(2)}), absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(run(most, "aten::chunk", "", {Ref("a"), Int(2), Int(-3)}), absl::StatusCode::kInternal,
              "REFERENCE_FAILED");
}

TEST_F(Interpreter, RefusesWhatKernelsWouldReadBeyondTheirTensors) {
  const at::Tensor x = at::ones({2, 6});
  const std::vector<std::vector<graph::Node>> unchecked = {
      {{"aten::ones", "", {Ints({2})}, {}, {"two"}},
       {"aten::_native_batch_norm_legit_no_training",
        "",
        {Ref("x"), None(), None(), Ref("two"), Ref("two"), Float(0.1), Float(1e-5)},
        {},
        {"y"}}},
      {{"aten::ones", "", {Ints({1, 2, 5, 4})}, {}, {"k"}},
       {"aten::ones", "", {Ints({1, 2, 3, 4})}, {}, {"v"}},
       {"aten::scaled_dot_product_attention", "", {Ref("k"), Ref("k"), Ref("v")}, {}, {"y"}}},
      {{"aten::ones", "", {Ints({1, 2, 5, 4})}, {}, {"k"}},
       {"aten::ones", "", {Ints({5, 4})}, {}, {"mask"}},
       {"aten::scaled_dot_product_attention", "", {Ref("k"), Ref("k"), Ref("k"), Ref("mask")}, {}, {"y"}}},
  };
  for (const auto& nodes : unchecked) {
    ExpectNamed(RunGraph(GraphOf(nodes), {x}).status(), absl::StatusCode::kInternal, "REFERENCE_FAILED");
  }
}

TEST_F(Interpreter, LetsGoOfValuesThatNobodyReadsAnyMore) {
  // A chain of sixteen values of 1 MiB in a budget of three.
  std::vector<graph::Node> nodes = {{"aten::ones", "", {Ints({1 << 18})}, {}, {"v0"}}};
  for (int i = 1; i < 16; ++i) {
    nodes.push_back({"aten::add", "Tensor", {Ref("v" + std::to_string(i - 1)), Int(1)}, {}, {"v" + std::to_string(i)}});
  }
  const auto result = RunGraph(GraphOf(nodes), {at::ones({2, 6})}, {.max_bytes = 3 << 20});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(at::equal(*result, at::ones({1 << 18}) * 16));
}

TEST_F(Interpreter, EndsARunThatTakesTooLong) {
  std::vector<graph::Node> nodes = {{"aten::relu", "", {Ref("x")}, {}, {"y"}}};
  ExpectNamed(RunGraph(GraphOf(nodes), {at::ones({2, 6})}, {.max_cpu_time = absl::ZeroDuration()}).status(),
              absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE");
}

}  // namespace
}  // namespace egeria::reference
