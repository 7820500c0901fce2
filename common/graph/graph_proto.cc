#include "common/graph/graph_proto.h"

#include <utility>

#include "common/base/status.h"

namespace egeria {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<DataType> TypeFromProto(v1::DataType proto) {
  const auto dtype = static_cast<DataType>(proto);
  if (ElementSize(dtype) == 0) {
    return NamedError(kInvalid, "BAD_DTYPE", "element type ", static_cast<int>(proto), " is unknown");
  }
  return dtype;
}

}  // namespace

void ToProto(const TensorSpec& spec, v1::TensorSpec* proto) {
  proto->set_name(spec.name);
  proto->set_dtype(static_cast<v1::DataType>(spec.dtype));
  proto->mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
}

absl::StatusOr<TensorSpec> FromProto(const v1::TensorSpec& proto) {
  EGERIA_ASSIGN_OR_RETURN(const DataType dtype, TypeFromProto(proto.dtype()));
  return TensorSpec{proto.name(), dtype, {proto.shape().begin(), proto.shape().end()}};
}

namespace graph {
namespace {

void ArgumentToProto(const Argument& argument, v1::Argument* proto) {
  struct Writer {
    v1::Argument* proto;
    void operator()(None) const { proto->mutable_none(); }
    void operator()(const ValueRef& value) const { proto->set_value(value.name); }
    void operator()(int64_t value) const { proto->set_int_value(value); }
    void operator()(double value) const { proto->set_float_value(value); }
    void operator()(bool value) const { proto->set_bool_value(value); }
    void operator()(const std::string& value) const { proto->set_string_value(value); }
    void operator()(DataType value) const { proto->set_dtype_value(static_cast<v1::DataType>(value)); }
    void operator()(const ArgumentList& list) const {
      v1::Argument::List* items = proto->mutable_list();
      for (const Argument& item : list) ArgumentToProto(item, items->add_items());
    }
  };
  std::visit(Writer{proto}, argument.kind);
}

absl::StatusOr<Argument> ArgumentFromProto(const v1::Argument& proto, size_t depth) {
  switch (proto.kind_case()) {
    case v1::Argument::kNone: return Argument{None{}};
    case v1::Argument::kValue: return Argument{ValueRef{proto.value()}};
    case v1::Argument::kIntValue: return Argument{int64_t{proto.int_value()}};
    case v1::Argument::kFloatValue: return Argument{proto.float_value()};
    case v1::Argument::kBoolValue: return Argument{proto.bool_value()};
    case v1::Argument::kStringValue: return Argument{proto.string_value()};
    case v1::Argument::kDtypeValue: {
      EGERIA_ASSIGN_OR_RETURN(const DataType dtype, TypeFromProto(proto.dtype_value()));
      return Argument{dtype};
    }
    case v1::Argument::kList: {
      if (depth >= GraphLimits{}.max_list_depth) {
        return NamedError(kInvalid, "BAD_ARGUMENT", "a list is nested more than ", depth, " deep");
      }
      ArgumentList list;
      list.reserve(proto.list().items_size());
      for (const v1::Argument& item : proto.list().items()) {
        EGERIA_ASSIGN_OR_RETURN(Argument argument, ArgumentFromProto(item, depth + 1));
        list.push_back(std::move(argument));
      }
      return Argument{std::move(list)};
    }
    case v1::Argument::KIND_NOT_SET: break;
  }
  return NamedError(kInvalid, "BAD_ARGUMENT", "an argument of no kind");
}

absl::StatusOr<Node> NodeFromProto(const v1::Node& proto) {
  Node node{.op = proto.op(), .overload = proto.overload()};
  node.args.reserve(proto.args_size());
  for (const v1::Argument& argument : proto.args()) {
    EGERIA_ASSIGN_OR_RETURN(Argument converted, ArgumentFromProto(argument, 0));
    node.args.push_back(std::move(converted));
  }
  for (const auto& [name, argument] : proto.kwargs()) {
    EGERIA_ASSIGN_OR_RETURN(Argument converted, ArgumentFromProto(argument, 0));
    node.kwargs.emplace(name, std::move(converted));
  }
  node.outputs.assign(proto.outputs().begin(), proto.outputs().end());
  return node;
}

}  // namespace

void ToProto(const ModuleGraph& graph, v1::ModuleGraph* proto) {
  proto->Clear();
  for (const TensorSpec& spec : graph.inputs) egeria::ToProto(spec, proto->add_inputs());
  for (const TensorSpec& spec : graph.weights) egeria::ToProto(spec, proto->add_weights());
  for (const Node& node : graph.nodes) {
    v1::Node* out = proto->add_nodes();
    out->set_op(node.op);
    out->set_overload(node.overload);
    for (const Argument& argument : node.args) ArgumentToProto(argument, out->add_args());
    for (const auto& [name, argument] : node.kwargs) ArgumentToProto(argument, &(*out->mutable_kwargs())[name]);
    for (const std::string& name : node.outputs) out->add_outputs(name);
  }
  for (const std::string& name : graph.outputs) proto->add_outputs(name);
}

absl::StatusOr<ModuleGraph> FromProto(const v1::ModuleGraph& proto) {
  ModuleGraph graph;
  for (const v1::TensorSpec& spec : proto.inputs()) {
    EGERIA_ASSIGN_OR_RETURN(TensorSpec converted, egeria::FromProto(spec));
    graph.inputs.push_back(std::move(converted));
  }
  for (const v1::TensorSpec& spec : proto.weights()) {
    EGERIA_ASSIGN_OR_RETURN(TensorSpec converted, egeria::FromProto(spec));
    graph.weights.push_back(std::move(converted));
  }
  graph.nodes.reserve(proto.nodes_size());
  for (const v1::Node& node : proto.nodes()) {
    EGERIA_ASSIGN_OR_RETURN(Node converted, NodeFromProto(node));
    graph.nodes.push_back(std::move(converted));
  }
  graph.outputs.assign(proto.outputs().begin(), proto.outputs().end());
  return graph;
}

}  // namespace graph
}  // namespace egeria
