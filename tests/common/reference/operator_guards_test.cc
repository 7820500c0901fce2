#include "common/reference/operator_guards.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/reference/backend.h"
#include "common/reference/reference_module.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using graph::Argument;
using testing::Bool;
using testing::Float;
using testing::Int;
using testing::Ints;
using testing::None;
using testing::Ref;
using testing::Text;

constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min(), kLargest = std::numeric_limits<int64_t>::max();

// One call, on x (2 x 4 x 8 x 8), i (2 x 3, whose values are the smallest integer) and row (2 x 4 x 64).
struct Call {
  std::string op, overload;
  std::vector<Argument> arguments;
};

absl::Status RunCall(const Call& call, std::vector<graph::Node> before = {}) {
  graph::ModuleGraph graph;
  graph.inputs = {{"x", DataType::kFloat32, {-1, 4, 8, 8}},
                  {"i", DataType::kInt64, {-1, 3}},
                  {"row", DataType::kFloat32, {-1, 4, 64}}};
  graph.nodes = std::move(before);
  graph.nodes.push_back({call.op, call.overload, call.arguments, {}, {"y"}});
  if (call.op == "aten::native_group_norm") graph.nodes.back().outputs = {"y", "mean", "rstd"};
  graph.outputs = {"y"};
  const auto module = ReferenceModule::Create(graph);
  if (!module.ok()) return module.status();
  (*module)->SetWeights({});
  return (*module)
      ->Run(*MakeAtenBackend(), {at::ones({2, 4, 8, 8}), at::full({2, 3}, kSmallest, at::kLong), at::ones({2, 4, 64})})
      .status();
}

Argument Minus() { return Ref("minus"); }
std::vector<graph::Node> MinusOne() { return {{"aten::full", "", {Ints({1}), Int(-1)}, {}, {"minus"}}}; }
std::vector<graph::Node> Image(int64_t size, const std::string& name) {
  return {{"aten::new_ones", "", {Ref("x"), Ints({1, 1, size, size})}, {}, {name}}};
}

TEST(OperatorGuards, RefuseWhatOperatorsDoNotCheck) {
  for (const int64_t extreme :
       {int64_t{1} << 31, int64_t{1} << 40, int64_t{1} << 62, -(int64_t{1} << 62), kSmallest, kLargest}) {
    const std::vector<Call> calls = {
        {"aten::max_pool1d", "", {Ref("row"), Ints({extreme}), Ints({}), Ints({0}), Ints({1}), Bool(false)}},
        {"aten::max_pool2d", "", {Ref("x"), Ints({2, 2}), Ints({extreme, 1})}},
        {"aten::max_pool2d", "", {Ref("x"), Ints({2, 2}), Ints({1, 1}), Ints({0, 0}), Ints({1, extreme})}},
        {"aten::avg_pool2d", "", {Ref("x"), Ints({extreme, extreme})}},
        {"aten::adaptive_avg_pool2d", "", {Ref("x"), Ints({extreme, 1})}},
        {"aten::native_group_norm",
         "",
         {Ref("row"), None(), None(), Int(2), Int(extreme), Int(64), Int(2), Float(1e-5)}},
        {"aten::diff", "", {Ref("x"), Int(extreme)}},
        {"aten::arange", "start_step", {Int(0), Int(extreme), Int(extreme > 0 ? -1 : 1)}},
        {"aten::arange", "", {Int(extreme)}},
        {"aten::repeat", "", {Ref("x"), Ints({extreme, 1, 1, 1})}},
        {"aten::expand", "", {Ref("x"), Ints({extreme, 2, 4, 8, 8})}},
        {"aten::narrow", "", {Ref("x"), Int(0), Int(extreme), Int(1)}},
        {"aten::channel_shuffle", "", {Ref("x"), Int(extreme)}},
        {"aten::constant_pad_nd", "", {Ref("x"), Ints({extreme, 0})}},
        {"aten::conv2d", "", {Ref("x"), Ref("x"), None(), Ints({extreme, 1})}},
        {"aten::conv2d", "", {Ref("x"), Ref("x"), None(), Ints({1, 1}), Ints({extreme, 0})}},
        {"aten::conv2d", "", {Ref("x"), Ref("x"), None(), Ints({1, 1}), Ints({0, 0}), Ints({extreme, 1})}},
        {"aten::conv2d", "", {Ref("x"), Ref("x"), None(), Ints({1, 1}), Ints({0, 0}), Ints({1, 1}), Int(extreme)}},
    };
    for (const Call& call : calls) {
      EXPECT_FALSE(RunCall(call).ok()) << call.op << " with " << extreme;
    }
  }
}

TEST(OperatorGuards, RefuseTheDivisionThatAProcessorTrapsAt) {
  for (const char* mode : {"trunc", "floor"}) {
    const auto divide = [&](std::vector<graph::Node> before, Argument divisor) {
      before.push_back(
          {"aten::div", "Tensor_mode", {Ref("i"), std::move(divisor)}, {{"rounding_mode", Text(mode)}}, {"q"}});
      return RunCall({"aten::alias", "", {Ref("q")}}, std::move(before));
    };
    EXPECT_FALSE(divide(MinusOne(), Minus()).ok());
    EXPECT_FALSE(divide({}, Int(-1)).ok());
    EXPECT_TRUE(divide({}, Int(3)).ok());
  }
  EXPECT_FALSE(RunCall({"aten::floor_divide", "", {Ref("i"), Minus()}}, MinusOne()).ok());
  EXPECT_TRUE(RunCall({"aten::div", "Tensor", {Ref("i"), Minus()}}, MinusOne()).ok()) << "no integers are divided";
}

TEST(OperatorGuards, RefuseWhatCostsTooMuchBeforeItBegins) {
  const std::vector<graph::Node> large = [] {
    auto nodes = Image(12'000, "a");
    nodes.push_back(Image(6'000, "b")[0]);
    nodes.push_back({"aten::view", "", {Ref("a"), Ints({12'000, 12'000})}, {}, {"square"}});
    nodes.push_back({"aten::full", "", {Ints({4'096, 4'096}), Int(2)}, {}, {"whole"}});
    return nodes;
  }();
  for (const Call& call : std::vector<Call>{
           {"aten::conv2d", "", {Ref("a"), Ref("b")}},
           {"aten::conv2d", "padding", {Ref("a"), Ref("b"), None(), Ints({1, 1}), Text("same")}},
           {"aten::convolution",
            "",
            {Ref("a"), Ref("b"), None(), Ints({1, 1}), Ints({0, 0}), Ints({1, 1}), Bool(false), Ints({0, 0}), Int(1)}},
           {"aten::conv_transpose2d", "input", {Ref("a"), Ref("b")}},
           {"aten::mm", "", {Ref("square"), Ref("square")}},
           {"aten::matmul", "", {Ref("square"), Ref("square")}},
           {"aten::linear", "", {Ref("square"), Ref("square")}},
           {"aten::addmm", "", {Ref("square"), Ref("square"), Ref("square")}},
           {"aten::mm", "", {Ref("whole"), Ref("whole")}},
           {"aten::scaled_dot_product_attention", "", {Ref("a"), Ref("a"), Ref("a")}},
           {"aten::max_pool2d", "", {Ref("a"), Ints({6'000, 6'000}), Ints({1, 1})}},
           {"aten::avg_pool2d", "", {Ref("a"), Ints({6'000, 6'000}), Ints({1, 1})}},
           {"aten::diff", "", {Ref("square"), Int(10'000)}}}) {
    const absl::Status status = RunCall(call, large);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << call.op << ": " << status;
  }
}

TEST(OperatorGuards, LetPassWhatModelsDo) {
  for (const Call& call : std::vector<Call>{
           {"aten::slice", "Tensor", {Ref("x"), Int(1), Int(0), Int(kLargest), Int(1)}},
           {"aten::slice", "Tensor", {Ref("x"), Int(1), Int(kSmallest), Int(2)}},
           {"aten::masked_fill", "Scalar", {Ref("i"), Ref("i"), Int(kSmallest)}},
           {"aten::max_pool2d", "", {Ref("x"), Ints({3, 3}), Ints({2, 2}), Ints({1, 1}), Ints({1, 1}), Bool(true)}},
           {"aten::max_pool1d", "", {Ref("row"), Ints({2})}},
           {"aten::avg_pool2d", "", {Ref("x"), Ints({8, 8})}},
           {"aten::adaptive_avg_pool2d", "", {Ref("x"), Ints({1, 1})}},
           {"aten::native_group_norm", "", {Ref("row"), None(), None(), Int(2), Int(4), Int(64), Int(2), Float(1e-5)}},
           {"aten::upsample_nearest2d", "vec", {Ref("x"), None(), Argument{graph::ArgumentList{Float(2), Float(2)}}}},
           {"aten::upsample_bilinear2d", "vec", {Ref("x"), Ints({16, 16}), Bool(false), None()}},
           {"aten::arange", "start_step", {Int(10), Int(0), Int(-2)}},
           {"aten::diff", "", {Ref("x")}},
           {"aten::conv2d", "padding", {Ref("x"), Ref("kernel"), None(), Ints({1, 1}), Text("same")}}}) {
    std::vector<graph::Node> before = {{"aten::new_ones", "", {Ref("x"), Ints({5, 4, 3, 3})}, {}, {"kernel"}}};
    if (call.op == "aten::masked_fill") {
      before.push_back({"aten::gt", "Scalar", {Ref("i"), Int(0)}, {}, {"mask"}});
      EXPECT_TRUE(RunCall({call.op, call.overload, {Ref("i"), Ref("mask"), Int(kSmallest)}}, before).ok());
      continue;
    }
    const absl::Status status = RunCall(call, before);
    EXPECT_TRUE(status.ok()) << call.op << ": " << status;
  }
}

TEST(OperatorGuards, BoundTheExtentOfValuesWithoutElements) {
  EXPECT_FALSE(RunCall({"aten::zeros", "", {Ints({0, 1 << 27, 1 << 27, 1 << 27})}}).ok());
  EXPECT_FALSE(RunCall({"aten::reshape", "", {Ref("x"), Ints(std::vector<int64_t>(17, 1))}}).ok());
  EXPECT_TRUE(RunCall({"aten::zeros", "", {Ints({0, 1 << 27})}}).ok());
}

}  // namespace
}  // namespace egeria::reference
