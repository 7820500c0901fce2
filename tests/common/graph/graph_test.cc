#include "common/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace egeria::graph {
namespace {

using ::testing::HasSubstr;

Argument Ref(std::string name) { return Argument{ValueRef{std::move(name)}}; }
Argument Int(int64_t value) { return Argument{value}; }

// relu(linear(x, w))
ModuleGraph SmallGraph() {
  return ModuleGraph{
      .inputs = {{"x", DataType::kFloat32, {-1, 4}}},
      .weights = {{"w", DataType::kFloat32, {3, 4}}},
      .nodes = {{"aten::linear", "", {Ref("x"), Ref("w")}, {}, {"y"}}, {"aten::relu", "", {Ref("y")}, {}, {"z"}}},
      .outputs = {"z"}};
}

void ExpectRefused(const ModuleGraph& graph, const std::string& name, const GraphLimits& limits = {}) {
  const absl::Status status = Validate(graph, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[" + name + "]"));
}

TEST(ModuleGraph, AcceptsALinearLayer) { EXPECT_TRUE(Validate(SmallGraph()).ok()) << Validate(SmallGraph()); }

TEST(ModuleGraph, RefusesAnUnknownOperator) {
  for (const char* op :
       {"aten::relu_", "aten::set_", "aten::as_strided", "aten::rand", "prim::If", "", "egeria::run"}) {
    ModuleGraph graph = SmallGraph();
    graph.nodes[1].op = op;
    ExpectRefused(graph, "UNKNOWN_OP");
  }
  ModuleGraph overload = SmallGraph();
  overload.nodes[1].overload = "out";
  ExpectRefused(overload, "UNKNOWN_OP");
}

TEST(ModuleGraph, RefusesACycle) {
  ModuleGraph graph = SmallGraph();
  graph.nodes[0].args[0] = Ref("z");
  ExpectRefused(graph, "UNDEFINED_VALUE");
  graph = SmallGraph();
  graph.nodes[1].args[0] = Ref("z");  // the node refers to itself
  ExpectRefused(graph, "UNDEFINED_VALUE");
}

TEST(ModuleGraph, RefusesUndefinedValuesEverywhere) {
  ModuleGraph graph = SmallGraph();
  graph.outputs = {"nowhere"};
  ExpectRefused(graph, "UNDEFINED_VALUE");
  graph = SmallGraph();
  graph.nodes[0].kwargs["bias"] = Ref("nowhere");
  ExpectRefused(graph, "UNDEFINED_VALUE");
  graph = SmallGraph();
  graph.nodes[0].args.push_back(Argument{ArgumentList{Int(1), Argument{ArgumentList{Ref("nowhere")}}}});
  ExpectRefused(graph, "UNDEFINED_VALUE");
}

TEST(ModuleGraph, RefusesAValueThatIsDefinedTwice) {
  ModuleGraph graph = SmallGraph();
  graph.nodes[1].outputs = {"y"};
  ExpectRefused(graph, "DUPLICATE_VALUE");
  graph = SmallGraph();
  graph.weights[0].name = "x";
  ExpectRefused(graph, "DUPLICATE_VALUE");
}

TEST(ModuleGraph, RefusesNamesThatCannotBePrinted) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\nb"), std::string("\xff"),
                                  std::string("a\0b", 3), std::string(257, 'a')}) {
    ModuleGraph graph = SmallGraph();
    graph.inputs[0].name = name;
    ExpectRefused(graph, "BAD_NAME");
  }
}

TEST(ModuleGraph, RefusesBadShapesAndTypes) {
  ModuleGraph graph = SmallGraph();
  graph.weights[0].shape = {-1, 4};
  ExpectRefused(graph, "BAD_SHAPE");
  graph = SmallGraph();
  graph.inputs[0].shape = {-2, 4};
  ExpectRefused(graph, "BAD_SHAPE");
  graph = SmallGraph();
  graph.inputs[0].shape = {};
  ExpectRefused(graph, "BAD_SHAPE");
  graph = SmallGraph();
  graph.inputs[0].shape = std::vector<int64_t>(17, 1);
  ExpectRefused(graph, "BAD_SHAPE");
  graph = SmallGraph();
  graph.weights[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  ExpectRefused(graph, "BAD_SHAPE");
  graph = SmallGraph();
  graph.weights[0].dtype = static_cast<DataType>(99);
  ExpectRefused(graph, "BAD_DTYPE");
  graph = SmallGraph();
  graph.nodes[0].kwargs["dtype"] = Argument{DataType::kUnspecified};
  ExpectRefused(graph, "BAD_DTYPE");
}

TEST(ModuleGraph, RefusesAGraphWithoutInputOrOutput) {
  ModuleGraph graph = SmallGraph();
  graph.outputs.clear();
  ExpectRefused(graph, "NO_OUTPUT");
  graph = SmallGraph();
  graph.inputs.clear();
  ExpectRefused(graph, "BAD_SHAPE");
}

TEST(ModuleGraph, RefusesWhatIsBeyondTheLimits) {
  const ModuleGraph graph = SmallGraph();
  ExpectRefused(graph, "GRAPH_TOO_LARGE", {.max_nodes = 1});
  ExpectRefused(graph, "GRAPH_TOO_LARGE", {.max_arguments_per_node = 1});
  ExpectRefused(graph, "GRAPH_TOO_LARGE", {.max_tensors = 1});
  ExpectRefused(graph, "GRAPH_TOO_LARGE", {.max_weight_bytes = 47});
  EXPECT_TRUE(
      Validate(graph, {.max_nodes = 2, .max_arguments_per_node = 2, .max_tensors = 2, .max_weight_bytes = 48}).ok());

  ModuleGraph deep = graph;
  Argument list = Int(1);
  for (int i = 0; i < 4; ++i) list = Argument{ArgumentList{list}};
  deep.nodes[0].args.push_back(list);
  ExpectRefused(deep, "GRAPH_TOO_LARGE");
  ModuleGraph longer = graph;
  longer.nodes[0].args.push_back(Argument{ArgumentList(4097, Int(1))});
  ExpectRefused(longer, "GRAPH_TOO_LARGE");
}

TEST(ModuleGraph, KnowsItsOwnOperators) {
  EXPECT_TRUE(IsOwnOperator("egeria::getitem"));
  EXPECT_TRUE(IsAllowedOperator("egeria::sym_floordiv", ""));
  EXPECT_FALSE(IsAllowedOperator("egeria::sym_floordiv", "int"));
  EXPECT_FALSE(IsOwnOperator("aten::relu"));
}

}  // namespace
}  // namespace egeria::graph
