#ifndef EGERIA_COMMON_GRAPH_GRAPH_H_
#define EGERIA_COMMON_GRAPH_GRAPH_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/tensor/wire_tensor.h"

// A layer module's computation as data, free of torch and of protobuf: the tracer and the Python package
// produce it, graph.proto carries it, the reference engine interprets it.
namespace egeria::graph {

struct Argument;
struct None {
  friend bool operator==(None, None) = default;
};
// A value of the graph, by name.
struct ValueRef {
  std::string name;
  friend bool operator==(const ValueRef&, const ValueRef&) = default;
};
using ArgumentList = std::vector<Argument>;

// One argument of an operator. Lists may contain any argument.
struct Argument {
  std::variant<None, ValueRef, int64_t, double, bool, std::string, DataType, ArgumentList> kind;
  friend bool operator==(const Argument&, const Argument&) = default;
};

struct Node {
  std::string op;        // "aten::conv2d", or one of kOwnOperators
  std::string overload;  // "" is the default overload
  std::vector<Argument> args;
  std::map<std::string, Argument> kwargs;
  // Names of the results, in order; trailing results that nobody uses may be omitted, and a node without
  // any is dead.
  std::vector<std::string> outputs;
  friend bool operator==(const Node&, const Node&) = default;
};

struct ModuleGraph {
  std::vector<TensorSpec> inputs;   // a free dimension is -1; shape[0] is the batch
  std::vector<TensorSpec> weights;  // parameters and buffers
  std::vector<Node> nodes;
  std::vector<std::string> outputs;
  friend bool operator==(const ModuleGraph&, const ModuleGraph&) = default;
};

// Bounds on what a graph may ask for. The defaults admit every model that the project was tried on with
// room for ten times more.
struct GraphLimits {
  size_t max_nodes = 20'000;
  size_t max_arguments_per_node = 64;
  size_t max_list_length = 4'096;
  size_t max_list_depth = 3;
  size_t max_name_length = 256;
  size_t max_tensors = 4'096;  // inputs + weights
  size_t max_weight_bytes = size_t{4} << 30;
};

// Checks everything that can be checked without an operator schema: bounds, names, that each value is
// defined once and before its use (so that there is no cycle), that operators are on the allowlist.
// Errors, all INVALID_ARGUMENT: [GRAPH_TOO_LARGE], [BAD_NAME], [UNDEFINED_VALUE] (also for a cycle),
// [DUPLICATE_VALUE], [UNKNOWN_OP], [BAD_SHAPE] (also for a graph without inputs), [BAD_DTYPE], [NO_OUTPUT].
absl::Status Validate(const ModuleGraph& graph, const GraphLimits& limits = {});

// True for operators that the reference engine will run: pure, without in-place, random or
// memory-reinterpreting ones.
bool IsAllowedOperator(absl::string_view op, absl::string_view overload);

// The ATen operators of the allowlist, sorted: "name", or "name.overload".
absl::Span<const absl::string_view> AllowedOperators();

// True for the graph's own operators, which work on integers and lists and take two positional arguments:
//   egeria::getitem(list or tuple, index)
//   egeria::sym_add, sym_sub, sym_mul, sym_floordiv, sym_mod, sym_max, sym_min (integers)
bool IsOwnOperator(absl::string_view op);

}  // namespace egeria::graph

#endif  // EGERIA_COMMON_GRAPH_GRAPH_H_
