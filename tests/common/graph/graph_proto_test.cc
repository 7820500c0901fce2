#include "common/graph/graph_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace egeria::graph {
namespace {

using ::testing::HasSubstr;

ModuleGraph GraphWithEveryKindOfArgument() {
  Node node{"aten::slice", "Tensor", {}, {}, {"y", "z"}};
  node.args = {Argument{ValueRef{"x"}},
               Argument{None{}},
               Argument{int64_t{-3}},
               Argument{std::numeric_limits<double>::denorm_min()},
               Argument{true},
               Argument{std::string("same")},
               Argument{DataType::kBFloat16},
               Argument{ArgumentList{Argument{int64_t{1}}, Argument{ArgumentList{Argument{ValueRef{"x"}}}}}},
               Argument{ArgumentList{}}};
  node.kwargs = {{"dim", Argument{int64_t{0}}}, {"alpha", Argument{0.5}}};
  return ModuleGraph{.inputs = {{"x", DataType::kFloat32, {-1, 4}}},
                     .weights = {{"w", DataType::kInt64, {}}},
                     .nodes = {node},
                     .outputs = {"z", "y"}};
}

TEST(GraphProto, KeepsEveryKindOfArgument) {
  const ModuleGraph graph = GraphWithEveryKindOfArgument();
  v1::ModuleGraph proto;
  ToProto(graph, &proto);
  v1::ModuleGraph parsed;
  ASSERT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
  const absl::StatusOr<ModuleGraph> back = FromProto(parsed);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, graph);
}

TEST(GraphProto, WritesOverWhatTheMessageHeld) {
  v1::ModuleGraph proto;
  ToProto(GraphWithEveryKindOfArgument(), &proto);
  ToProto(GraphWithEveryKindOfArgument(), &proto);
  EXPECT_EQ(*FromProto(proto), GraphWithEveryKindOfArgument());
}

void ExpectRefused(const v1::ModuleGraph& proto, const std::string& name) {
  const absl::StatusOr<ModuleGraph> graph = FromProto(proto);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("[" + name + "]"));
}

TEST(GraphProto, RefusesAnArgumentOfNoKind) {
  v1::ModuleGraph proto;
  proto.add_nodes()->add_args();
  ExpectRefused(proto, "BAD_ARGUMENT");
  proto.Clear();
  (*proto.add_nodes()->mutable_kwargs())["k"].mutable_list()->add_items();
  ExpectRefused(proto, "BAD_ARGUMENT");
}

TEST(GraphProto, RefusesListsThatAreTooDeep) {
  v1::ModuleGraph proto;
  v1::Argument* argument = proto.add_nodes()->add_args();
  for (int depth = 0; depth < 4; ++depth) argument = argument->mutable_list()->add_items();
  argument->set_int_value(1);
  ExpectRefused(proto, "BAD_ARGUMENT");
}

TEST(GraphProto, RefusesUnknownElementTypes) {
  v1::ModuleGraph proto;
  proto.add_inputs()->set_name("x");
  ExpectRefused(proto, "BAD_DTYPE");
  proto.Clear();
  proto.add_weights()->set_dtype(static_cast<v1::DataType>(77));
  ExpectRefused(proto, "BAD_DTYPE");
  proto.Clear();
  proto.add_nodes()->add_args()->set_dtype_value(static_cast<v1::DataType>(-1));
  ExpectRefused(proto, "BAD_DTYPE");
}

TEST(TensorSpecProto, KeepsNameTypeAndShape) {
  const TensorSpec spec{"layer1.0.weight", DataType::kFloat16, {3, 0, 5}};
  v1::TensorSpec proto;
  ToProto(spec, &proto);
  EXPECT_EQ(*egeria::FromProto(proto), spec);
}

}  // namespace
}  // namespace egeria::graph
