#include "common/graph/graph.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/base/status.h"

namespace egeria::graph {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
// ATen's own iterators stop at 64 dimensions; no model comes near.
constexpr size_t kMaxRank = 16;

// Names end in logs, errors and metrics: printable ASCII without a blank.
bool IsCleanName(const std::string& name, const GraphLimits& limits) {
  return !name.empty() && name.size() <= limits.max_name_length &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// A bounded copy of what may be hostile text, for an error message.
std::string Shown(const std::string& name) {
  std::string shown = name.substr(0, 64);
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

class Validator {
 public:
  explicit Validator(const GraphLimits& limits) : limits_(limits) {}

  absl::Status Run(const ModuleGraph& graph) {
    EGERIA_RETURN_IF_ERROR(CheckSizes(graph));
    for (const TensorSpec& spec : graph.inputs) EGERIA_RETURN_IF_ERROR(CheckInput(spec));
    size_t weight_bytes = 0;
    for (const TensorSpec& spec : graph.weights) EGERIA_RETURN_IF_ERROR(CheckWeight(spec, &weight_bytes));
    for (const Node& node : graph.nodes) EGERIA_RETURN_IF_ERROR(CheckNode(node));
    if (graph.outputs.empty()) return NamedError(kInvalid, "NO_OUTPUT", "the graph names no output");
    for (const std::string& name : graph.outputs) EGERIA_RETURN_IF_ERROR(CheckDefined(name, "the outputs"));
    return absl::OkStatus();
  }

 private:
  absl::Status CheckSizes(const ModuleGraph& graph) const {
    if (graph.nodes.size() > limits_.max_nodes) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", graph.nodes.size(), " nodes, at most ", limits_.max_nodes);
    }
    const size_t tensors = graph.inputs.size() + graph.weights.size();
    if (tensors > limits_.max_tensors || graph.outputs.size() > limits_.max_tensors) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", tensors, " inputs and weights and ", graph.outputs.size(),
                        " outputs, at most ", limits_.max_tensors);
    }
    if (graph.inputs.empty()) return NamedError(kInvalid, "BAD_SHAPE", "the graph has no input, hence no batch");
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const TensorSpec& spec) {
    EGERIA_RETURN_IF_ERROR(Define(spec.name));
    if (ElementSize(spec.dtype) == 0) {
      return NamedError(kInvalid, "BAD_DTYPE", "tensor '", spec.name, "' has an unknown element type");
    }
    if (spec.shape.size() > kMaxRank) {
      return NamedError(kInvalid, "BAD_SHAPE", "tensor '", spec.name, "' has ", spec.shape.size(), " dimensions");
    }
    return absl::OkStatus();
  }

  absl::Status CheckInput(const TensorSpec& spec) {
    EGERIA_RETURN_IF_ERROR(CheckTensor(spec));
    if (spec.shape.empty()) {
      return NamedError(kInvalid, "BAD_SHAPE", "input '", spec.name, "' has no batch dimension");
    }
    TensorSpec bound = spec;  // with the free dimensions at their smallest
    for (int64_t& dimension : bound.shape) dimension = dimension == -1 ? 1 : dimension;
    return ByteSize(bound).status();
  }

  absl::Status CheckWeight(const TensorSpec& spec, size_t* total) {
    EGERIA_RETURN_IF_ERROR(CheckTensor(spec));
    EGERIA_ASSIGN_OR_RETURN(const size_t bytes, ByteSize(spec));
    *total += bytes;  // at most 4096 times 2^40
    if (*total > limits_.max_weight_bytes) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", "the weights take more than ", limits_.max_weight_bytes, " bytes");
    }
    return absl::OkStatus();
  }

  absl::Status CheckNode(const Node& node) {
    if (!IsAllowedOperator(node.op, node.overload)) {
      return NamedError(kInvalid, "UNKNOWN_OP", "operator ", Shown(node.op), node.overload.empty() ? "" : ".",
                        Shown(node.overload), " is not one that the reference engine runs");
    }
    if (node.args.size() + node.kwargs.size() > limits_.max_arguments_per_node) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", node.op, " has more than ", limits_.max_arguments_per_node,
                        " arguments");
    }
    for (const Argument& argument : node.args) EGERIA_RETURN_IF_ERROR(CheckArgument(argument, node.op, 0));
    for (const auto& [name, argument] : node.kwargs) {
      if (!IsCleanName(name, limits_)) return BadName(name);
      EGERIA_RETURN_IF_ERROR(CheckArgument(argument, node.op, 0));
    }
    if (node.outputs.size() > limits_.max_list_length) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", node.op, " has ", node.outputs.size(), " outputs");
    }
    for (const std::string& name : node.outputs) EGERIA_RETURN_IF_ERROR(Define(name));
    return absl::OkStatus();
  }

  absl::Status CheckArgument(const Argument& argument, const std::string& op, size_t depth) const {
    if (const auto* value = std::get_if<ValueRef>(&argument.kind)) return CheckDefined(value->name, op);
    if (const auto* text = std::get_if<std::string>(&argument.kind)) {
      if (text->size() > limits_.max_name_length) {
        return NamedError(kInvalid, "GRAPH_TOO_LARGE", op, " has a string of ", text->size(), " bytes");
      }
    }
    if (const auto* dtype = std::get_if<DataType>(&argument.kind)) {
      if (ElementSize(*dtype) == 0) {
        return NamedError(kInvalid, "BAD_DTYPE", op, " has an unknown element type as an argument");
      }
    }
    const auto* list = std::get_if<ArgumentList>(&argument.kind);
    if (list == nullptr) return absl::OkStatus();
    if (list->size() > limits_.max_list_length || depth >= limits_.max_list_depth) {
      return NamedError(kInvalid, "GRAPH_TOO_LARGE", op, " has a list of ", list->size(), " items at depth ",
                        depth + 1);
    }
    for (const Argument& item : *list) EGERIA_RETURN_IF_ERROR(CheckArgument(item, op, depth + 1));
    return absl::OkStatus();
  }

  static absl::Status BadName(const std::string& name) {
    return NamedError(kInvalid, "BAD_NAME", "'", Shown(name), "' (", name.size(),
                      " bytes) is empty, too long or not printable");
  }

  absl::Status Define(const std::string& name) {
    if (!IsCleanName(name, limits_)) return BadName(name);
    if (!defined_.insert(name).second) {
      return NamedError(kInvalid, "DUPLICATE_VALUE", "'", name, "' is defined twice");
    }
    return absl::OkStatus();
  }

  absl::Status CheckDefined(const std::string& name, const std::string& user) const {
    if (defined_.contains(name)) return absl::OkStatus();
    return NamedError(kInvalid, "UNDEFINED_VALUE", user, ": '", Shown(name), "' is not defined before its use");
  }

  const GraphLimits& limits_;
  absl::flat_hash_set<std::string> defined_;
};

}  // namespace

absl::Status Validate(const ModuleGraph& graph, const GraphLimits& limits) { return Validator(limits).Run(graph); }

}  // namespace egeria::graph
